//! Parsing of names. Separate from [`Name`], because [`Error`] contains names and parsing returns errors.

use std::str::FromStr;

use crate::dirq::{
    Error, Name,
    file_name::{directory_of, element_of},
};

impl FromStr for Name {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        if name == "NULL" {
            return Ok(Self::NULL);
        }
        name.split_once('/')
            .and_then(|(directory, element)| {
                Some(Self {
                    directory: directory_of(directory.as_bytes())?,
                    element: element_of(element.as_bytes())?,
                })
            })
            .ok_or_else(|| Error::InvalidName { name: name.to_owned() })
    }
}

impl TryFrom<&str> for Name {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self, Error> {
        name.parse()
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        name.parse()
    }
}

impl Name {
    /// Rejects `NULL`, which is not in any directory.
    pub(in crate::dirq) fn check(&self) -> Result<(), Error> {
        match *self {
            Self::NULL => Err(Error::InvalidName { name: self.to_string() }),
            _ => Ok(()),
        }
    }
}
