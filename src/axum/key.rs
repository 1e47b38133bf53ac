//! Extraction of a request's key, and the bound on its length.

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

use crate::{engine::text::prefix, rate_limit::MAX_KEY_BYTES};

/// A key, no key, or the response to a request whose key cannot be extracted.
pub(super) type ExtractedKey<K> = ControlFlow<Response, Option<K>>;

/// Source of a request's key.
pub(super) enum KeyExtractor<K> {
    Function(RequestFn<ExtractedKey<K>>),
    /// Adds what it finds to the extensions of the request, for the handler. So it runs for requests that are not
    /// limited, too.
    Recording(RecordingFn<K>),
    FromRequest(Extractor<K>),
}

pub(super) type RecordingFn<K> = Arc<dyn Fn(&mut Parts) -> ExtractedKey<K> + Send + Sync>;

pub(super) type Extractor<K> =
    Arc<dyn for<'a> Fn(&'a mut Parts) -> BoxFuture<'a, ExtractedKey<K>> + Send + Sync>;

pub(super) type RequestFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

impl<K> KeyExtractor<K> {
    /// Extracts the key with axum's `FromRequestParts` and this state.
    pub(super) fn from_request<A>(state: A) -> Self
    where
        K: FromRequestParts<A> + 'static,
        A: Send + Sync + 'static,
    {
        let state = Arc::new(state);
        KeyExtractor::FromRequest(extractor(move |parts| {
            let state = state.clone();
            Box::pin(async move {
                match K::from_request_parts(parts, &state).await {
                    Ok(key) => ControlFlow::Continue(Some(key)),
                    Err(rejection) => ControlFlow::Break(rejection.into_response()),
                }
            })
        }))
    }
}

impl<K> Clone for KeyExtractor<K> {
    fn clone(&self) -> Self {
        match self {
            KeyExtractor::Function(find) => KeyExtractor::Function(find.clone()),
            KeyExtractor::Recording(find) => KeyExtractor::Recording(find.clone()),
            KeyExtractor::FromRequest(extract) => KeyExtractor::FromRequest(extract.clone()),
        }
    }
}

/// Boxes a closure. The signature gives the compiler the lifetimes, which it does not infer.
fn extractor<K>(
    extract: impl for<'a> Fn(&'a mut Parts) -> BoxFuture<'a, ExtractedKey<K>> + Send + Sync + 'static,
) -> Extractor<K> {
    Arc::new(extract)
}

/// Returns the key, shortened if it is a long `String`.
pub(super) fn bounded<K: 'static>(mut key: K) -> K {
    let any: &mut dyn Any = &mut key;
    if let Some(text) = any.downcast_mut::<String>()
        && text.len() > MAX_KEY_BYTES
    {
        *text = shortened(text);
    }
    key
}

/// Shortens a text to a prefix and a hash. The result is longer than every key that is not shortened, so no such key
/// can equal it. The hash has 128 bits and a secret seed, so that clients cannot construct collisions.
fn shortened(text: &str) -> String {
    static SECRETS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);

    let [first, second] = SECRETS.each_ref().map(|secret| secret.hash_one(text));
    format!("{}#{first:016x}{second:016x}", prefix(text, MAX_KEY_BYTES))
}
