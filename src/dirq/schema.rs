//! Schemas: the fields of a normal queue's elements, and how each is written to a file and read back.

use std::{collections::BTreeMap, path::Path, str::FromStr};

use bytes::Bytes;

use super::{Element, Error, Value, table};

/// A field of this name would collide with an element's lock.
const LOCKED: &str = "locked";

/// The fields of a [`Queue`](super::Queue)'s elements, with their types.
///
/// ```
/// use fleeting::dirq::Schema;
///
/// let schema = Schema::new([("body", "string"), ("header", "table?")])?;
/// assert_eq!(schema, "body:string,header:table?".parse()?);
/// # Ok::<(), fleeting::dirq::Error>(())
/// ```
///
/// A field's name consists of ASCII letters and digits. Its type is `binary` (bytes), `string` (text, as UTF-8) or
/// `table` (a map of strings). A `?` after the type makes the field optional. At least one field is mandatory. A `*`
/// after the type, by which Perl's `Directory::Queue` passes references, is accepted and has no effect.
///
/// A reader's schema need not have all fields of a queue: files that are not in your schema are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(BTreeMap<String, Field>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    kind: FieldKind,
    optional: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    Binary,
    String,
    Table,
}

impl Schema {
    /// Creates a schema from pairs of a field's name and its type.
    ///
    /// ```
    /// # use fleeting::dirq::{Error, Schema};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mail = Schema::new([("body", "string"), ("picture", "binary?"), ("header", "table")])?;
    /// assert!(matches!(Schema::new([("body", "text")]), Err(Error::InvalidFieldType { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidFieldName`], [`Error::InvalidFieldType`], [`Error::InvalidSchema`] if a field is given twice,
    /// and [`Error::NoMandatoryField`].
    pub fn new<F, T>(fields: impl IntoIterator<Item = (F, T)>) -> Result<Self, Error>
    where
        F: Into<String>,
        T: AsRef<str>,
    {
        let mut schema = BTreeMap::new();
        for (name, given) in fields {
            let name = name.into();
            if !is_field_name(&name) {
                return Err(Error::InvalidFieldName { field: name });
            }
            let given = given.as_ref();
            let Some(field) = Field::parse(given) else {
                return Err(Error::InvalidFieldType { field: name, given: given.to_owned() });
            };
            if schema.contains_key(&name) {
                return Err(Error::InvalidSchema {
                    reason: format!("field {name:?} occurs twice"),
                });
            }
            schema.insert(name, field);
        }
        if schema.values().all(|field| field.optional) {
            return Err(Error::NoMandatoryField);
        }
        Ok(Self(schema))
    }

    /// Checks that `element` has the fields of the schema, all with values of their types.
    ///
    /// ```
    /// # use fleeting::dirq::{Element, Schema};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let schema = Schema::new([("body", "string"), ("header", "table?")])?;
    /// assert!(schema.check(&Element::new().with("body", "hello")).is_ok());
    /// let error = schema.check(&Element::new()).unwrap_err();
    /// assert_eq!(error.to_string(), r#"missing mandatory field "body""#);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::UnexpectedField`], [`Error::WrongType`] and [`Error::MissingField`].
    pub fn check(&self, element: &Element) -> Result<(), Error> {
        for (name, value) in element {
            let Some(field) = self.0.get(name) else {
                return Err(Error::UnexpectedField { field: name.clone() });
            };
            let (expected, given) = (field.kind.name(), value.type_name());
            if expected != given {
                return Err(Error::WrongType { field: name.clone(), expected, given });
            }
        }
        let missing =
            |(name, field): &(&String, &Field)| !field.optional && element.get(name).is_none();
        match self.0.iter().find(missing) {
            Some((name, _)) => Err(Error::MissingField { field: name.clone() }),
            None => Ok(()),
        }
    }

    /// Returns the files of `element`: their names, which are the names of its fields, and their contents.
    pub(super) fn encode(&self, element: Element) -> Result<Vec<(String, Bytes)>, Error> {
        self.check(&element)?;
        Ok(element.into_iter().map(|(name, value)| (name, encode(value))).collect())
    }

    /// Returns the number of fields, including optional ones.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Decodes the element in the directory at `path`. `read` returns the content of a file by its name, or `None` if
    /// the file is missing.
    pub(super) fn decode(
        &self,
        path: &Path,
        mut read: impl FnMut(&str) -> Result<Option<Vec<u8>>, Error>,
    ) -> Result<Element, Error> {
        // Only the files in the schema are read: other files may be fields of another schema.
        let mut fields = Vec::with_capacity(self.0.len());
        for (name, field) in &self.0 {
            match read(name)? {
                Some(bytes) => fields.push((name.clone(), field.kind.decode(name, path, bytes)?)),
                None if field.optional => {}
                None => return Err(Error::MissingFile { path: path.join(name) }),
            }
        }
        Ok(fields.into_iter().collect())
    }
}

/// Returns whether a file of this name in an element's directory holds a field. The lock does not.
pub(super) fn is_field_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) && name != LOCKED
}

/// Parses a schema such as `body:string,header:table?`, with optional white space around the parts.
impl FromStr for Schema {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let field = |part: &str| match part.split_once(':') {
            Some((name, given)) => Ok((name.trim().to_owned(), given.trim().to_owned())),
            None => Err(Error::InvalidSchema {
                reason: format!("expected a name, a colon and a type, got {part:?}"),
            }),
        };
        Self::new(text.split(',').map(field).collect::<Result<Vec<_>, _>>()?)
    }
}

impl Field {
    fn parse(given: &str) -> Option<Self> {
        let (kind, optional) = match given.strip_suffix("?*").or(given.strip_suffix("*?")) {
            Some(kind) => (kind, true),
            None => match given.strip_suffix('?') {
                Some(kind) => (kind, true),
                None => (given.strip_suffix('*').unwrap_or(given), false),
            },
        };
        let kind = match kind {
            "binary" => FieldKind::Binary,
            "string" => FieldKind::String,
            "table" => FieldKind::Table,
            _ => return None,
        };
        Some(Self { kind, optional })
    }
}

impl FieldKind {
    fn name(self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::String => "string",
            Self::Table => "table",
        }
    }

    fn decode(self, field: &str, path: &Path, bytes: Vec<u8>) -> Result<Value, Error> {
        if self == Self::Binary {
            return Ok(bytes.into());
        }
        let text = String::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            field: field.to_owned(),
            path: path.to_owned(),
            source: error.utf8_error(),
        })?;
        if self == Self::String {
            return Ok(text.into());
        }
        let table = table::decode(&text);
        table.map(Value::Table).map_err(|line| Error::InvalidTable {
            field: field.to_owned(),
            path: path.to_owned(),
            line,
        })
    }
}

fn encode(value: Value) -> Bytes {
    match value {
        Value::Binary(bytes) => bytes,
        Value::String(text) => text.into(),
        Value::Table(table) => table::encode(&table).into(),
    }
}
