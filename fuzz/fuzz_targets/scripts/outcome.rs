//! Results that the calls may have, and what is known of the entries.

use std::{collections::BTreeMap, fmt::Debug};

use fleeting::redis::Error;

/// Returns the value of a call; `None` if it was refused because of the length of an argument. Passes on the error of a
/// lost connection.
pub(crate) fn outcome<T>(call: &dyn Debug, result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::TooLarge { .. }) => Ok(None),
        Err(error) if error.is_temporary() => Err(error),
        Err(error) => panic!("{call:?}: {error:?}"),
    }
}

/// Returns what a builder has built; `None` for a name that it must refuse.
pub(crate) fn built<T>(name: &str, result: Result<T, Error>) -> Option<T> {
    let is_refused = name.is_empty() || name.contains(['{', '}']);
    match result {
        Ok(built) => {
            assert!(!is_refused, "the name {name:?} was not refused");
            Some(built)
        }
        Err(Error::Name(_)) if is_refused => None,
        Err(error) => panic!("{name:?}: {error:?}"),
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Known<V> {
    Missing,
    Present(V),
    Unknown,
}

impl<V: Debug + PartialEq> Known<V> {
    pub(crate) fn is(&self, found: &Option<V>) -> bool {
        match self {
            Self::Missing => found.is_none(),
            Self::Present(value) => found.as_ref() == Some(value),
            Self::Unknown => true,
        }
    }

    /// Returns whether there may be an entry, or none.
    pub(crate) fn may_exist(&self, exists: bool) -> bool {
        match self {
            Self::Missing => !exists,
            Self::Present(_) => exists,
            Self::Unknown => true,
        }
    }
}

/// The known state of each key. At first, all are missing.
#[derive(Debug)]
pub(crate) struct Model<K, V>(BTreeMap<K, Known<V>>);

impl<K: Ord + Clone, V: Clone> Model<K, V> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn of(&self, key: &K) -> Known<V> {
        self.0.get(key).cloned().unwrap_or(Known::Missing)
    }

    pub(crate) fn set(&mut self, key: K, known: Known<V>) {
        self.0.insert(key, known);
    }

    pub(crate) fn forget_all(&mut self) {
        self.0.values_mut().for_each(|known| *known = Known::Unknown);
    }

    /// All keys are missing.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn present(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().filter_map(|(key, known)| match known {
            Known::Present(value) => Some((key, value)),
            _ => None,
        })
    }
}
