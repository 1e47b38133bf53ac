//! Elements of normal queues: values of three types, by field name.

use std::collections::{BTreeMap, btree_map};

use bytes::Bytes;

/// An element of a [`Queue`](super::Queue): a value for each of its fields, by name.
///
/// ```
/// use fleeting::dirq::Element;
///
/// let element = Element::new()
///     .with("body", "hello, world")
///     .with("header", [("from", "ada"), ("to", "grace")]);
///
/// assert_eq!(element.string("body"), Some("hello, world"));
/// assert_eq!(element.table("header").unwrap()["to"], "grace");
/// assert_eq!(element.binary("body"), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element(BTreeMap<String, Value>);

/// The value of a field, in one of the three types of a [`Schema`](super::Schema). Made from text, bytes or pairs.
///
/// ```
/// use fleeting::dirq::Value;
///
/// assert!(matches!(Value::from("hello"), Value::String(_)));
/// assert!(matches!(Value::from(b"\x89PNG"), Value::Binary(_)));
/// assert!(matches!(Value::from([("to", "ada")]), Value::Table(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes, stored as they are.
    Binary(Bytes),
    /// Text, stored as UTF-8.
    ///
    /// Perl's `Directory::Queue` cannot read the code points that Unicode defines as noncharacters, such as U+FFFE,
    /// U+FDD0 and U+10FFFF. They are written nevertheless, as Python does.
    String(String),
    /// A map of strings, stored as sorted lines. The note on noncharacters at [`String`](Self::String) applies here
    /// too.
    Table(BTreeMap<String, String>),
}

impl Element {
    /// Creates an element without fields.
    ///
    /// ```
    /// # use fleeting::dirq::Element;
    /// let mut mail = Element::new().with("body", "hello");
    /// let is_urgent = true;
    /// if is_urgent {
    ///     mail = mail.with("header", [("priority", "1")]);
    /// }
    /// # assert!(mail.table("header").is_some());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field, or replaces its value. The value is text, bytes, or pairs of strings.
    ///
    /// ```
    /// # use fleeting::dirq::Element;
    /// let mail = Element::new()
    ///     .with("body", "hello")                       // text
    ///     .with("picture", vec![0x89, 0x50])           // bytes
    ///     .with("header", [("to", "ada"), ("cc", "bob")]); // a table
    /// # assert_eq!(mail.iter().count(), 3);
    /// ```
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.insert(field.into(), value.into());
        self
    }

    /// Returns the value of a field.
    ///
    /// ```
    /// # use fleeting::dirq::{Element, Value};
    /// let mail = Element::new().with("body", "hello");
    /// match mail.get("body") {
    ///     Some(Value::String(text)) => println!("{text}"),
    ///     Some(_) => println!("not a text"),
    ///     None => println!("no body"),
    /// }
    /// # assert!(matches!(mail.get("body"), Some(Value::String(_))));
    /// ```
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// Returns the value of a field if it is a [`Value::Binary`].
    ///
    /// ```
    /// # use fleeting::dirq::Element;
    /// let mail = Element::new().with("picture", vec![0x89, 0x50]);
    /// assert_eq!(mail.binary("picture").unwrap()[..], [0x89, 0x50]);
    /// ```
    pub fn binary(&self, field: &str) -> Option<&Bytes> {
        match self.get(field)? {
            Value::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the value of a field if it is a [`Value::String`].
    ///
    /// ```
    /// # use fleeting::dirq::Element;
    /// let mail = Element::new().with("body", "hello");
    /// assert_eq!(mail.string("body"), Some("hello"));
    /// assert_eq!(mail.string("subject"), None);
    /// ```
    pub fn string(&self, field: &str) -> Option<&str> {
        match self.get(field)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value of a field if it is a [`Value::Table`].
    ///
    /// ```
    /// # use fleeting::dirq::Element;
    /// let mail = Element::new().with("header", [("to", "ada")]);
    /// let to = mail.table("header").and_then(|header| header.get("to"));
    /// assert_eq!(to.map(String::as_str), Some("ada"));
    /// ```
    pub fn table(&self, field: &str) -> Option<&BTreeMap<String, String>> {
        match self.get(field)? {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns an iterator over the fields and their values, ordered by field name.
    ///
    /// ```
    /// # use fleeting::dirq::Element;
    /// let mail = Element::new().with("subject", "lunch").with("body", "at noon?");
    /// let fields: Vec<_> = mail.iter().map(|(field, _)| field.as_str()).collect();
    /// assert_eq!(fields, ["body", "subject"]);
    /// ```
    pub fn iter(&self) -> btree_map::Iter<'_, String, Value> {
        self.0.iter()
    }
}

impl Value {
    /// Returns the approximate size of its file in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Binary(bytes) => bytes.len(),
            Self::String(text) => text.len(),
            Self::Table(table) => table.iter().map(|(key, value)| key.len() + value.len()).sum(),
        }
    }

    /// Returns the name of its type in a schema.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Binary(_) => "binary",
            Self::String(_) => "string",
            Self::Table(_) => "table",
        }
    }
}

impl<F: Into<String>, V: Into<Value>> FromIterator<(F, V)> for Element {
    fn from_iter<I: IntoIterator<Item = (F, V)>>(fields: I) -> Self {
        Self(fields.into_iter().map(|(field, value)| (field.into(), value.into())).collect())
    }
}

impl IntoIterator for Element {
    type Item = (String, Value);
    type IntoIter = btree_map::IntoIter<String, Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Element {
    type Item = (&'a String, &'a Value);
    type IntoIter = btree_map::Iter<'a, String, Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self::Binary(bytes)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes.into())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Binary(Bytes::copy_from_slice(bytes))
    }
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(bytes: &[u8; N]) -> Self {
        bytes[..].into()
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl<K: Into<String>, V: Into<String>> From<BTreeMap<K, V>> for Value {
    fn from(table: BTreeMap<K, V>) -> Self {
        Self::Table(pairs(table))
    }
}

impl<K: Into<String>, V: Into<String>, const N: usize> From<[(K, V); N]> for Value {
    fn from(table: [(K, V); N]) -> Self {
        Self::Table(pairs(table))
    }
}

fn pairs<K: Into<String>, V: Into<String>>(
    table: impl IntoIterator<Item = (K, V)>,
) -> BTreeMap<String, String> {
    table.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}
