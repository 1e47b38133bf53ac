use std::{
    any::Any,
    hash::{BuildHasher, RandomState},
    ops::ControlFlow,
    sync::{Arc, LazyLock},
};

use ::axum::{
    extract::FromRequestParts,
    http::request::Parts,
    response::{IntoResponse, Response},
};
use futures_core::future::BoxFuture;

/// A longer key is shortened.
const MAX_KEY_BYTES: usize = 256;

/// A key, no key, or the answer to a request that can have none.
pub(super) type Found<K> = ControlFlow<Response, Option<K>>;

/// How a request's key is found.
pub(super) enum KeyOf<K> {
    Request(OfRequest<Found<K>>),
    Extractor(fn(&mut Parts) -> BoxFuture<'_, Found<K>>),
}

pub(super) type OfRequest<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

impl<K> KeyOf<K> {
    pub(super) fn extracted() -> Self
    where
        K: FromRequestParts<()> + 'static,
    {
        KeyOf::Extractor(extract)
    }
}

impl<K> KeyOf<K> {
    pub(super) async fn find(&self, parts: &mut Parts) -> Found<K> {
        match self {
            KeyOf::Request(find) => find(parts),
            KeyOf::Extractor(extract) => extract(parts).await,
        }
    }
}

impl<K> Clone for KeyOf<K> {
    fn clone(&self) -> Self {
        match self {
            KeyOf::Request(find) => KeyOf::Request(find.clone()),
            KeyOf::Extractor(extract) => KeyOf::Extractor(*extract),
        }
    }
}

fn extract<K>(parts: &mut Parts) -> BoxFuture<'_, Found<K>>
where
    K: FromRequestParts<()> + 'static,
{
    Box::pin(async {
        match K::from_request_parts(parts, &()).await {
            Ok(key) => ControlFlow::Continue(Some(key)),
            Err(rejection) => ControlFlow::Break(rejection.into_response()),
        }
    })
}

/// The key itself, if it is no long `String`.
pub(super) fn bounded<K: 'static>(mut key: K) -> K {
    let any: &mut dyn Any = &mut key;
    if let Some(text) = any.downcast_mut::<String>()
        && text.len() > MAX_KEY_BYTES
    {
        *text = shortened(text);
    }
    key
}

/// Longer than every key that is not shortened, so that none can be made to look like this one. The hash
/// has 128 bits and a secret, so that nobody finds two keys of one hash.
fn shortened(text: &str) -> String {
    static SECRETS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);

    let end = (0..=MAX_KEY_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let [first, second] = SECRETS.each_ref().map(|secret| secret.hash_one(text));
    format!("{}#{first:016x}{second:016x}", &text[..end])
}
