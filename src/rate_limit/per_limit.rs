//! `PerLimit`, a slice with one item for each limit.

use std::ops::{Deref, DerefMut};

/// One item for each limit. Most limiters have one limit, for which it does not allocate.
#[derive(Clone, Debug)]
pub(crate) enum PerLimit<T> {
    One(T),
    Many(Box<[T]>),
}

impl<T> FromIterator<T> for PerLimit<T> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (Some(one), None) => PerLimit::One(one),
            (first, second) => {
                PerLimit::Many(first.into_iter().chain(second).chain(items).collect())
            }
        }
    }
}

impl<T> Deref for PerLimit<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            PerLimit::One(one) => std::slice::from_ref(one),
            PerLimit::Many(many) => many,
        }
    }
}

impl<T> DerefMut for PerLimit<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            PerLimit::One(one) => std::slice::from_mut(one),
            PerLimit::Many(many) => many,
        }
    }
}
