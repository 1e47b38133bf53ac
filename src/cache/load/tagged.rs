//! `Tagged`: TTL and tags of a loaded value, as the TTL argument of a loader method.

use std::time::Duration;

use super::ttl::TimeToLive;

/// TTL and tags of a loaded value: pass it to a loader method in place of the TTL.
///
/// ```
/// use std::time::Duration;
/// use fleeting::{Cache, Tagged};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let pages: Cache<&str, String> = Cache::new();
/// let hour = Duration::from_secs(3_600);
/// let page = async || "the page of Ada".to_owned();
/// pages.get_or_set_with(&"/ada", Tagged::new(hour, ["user:ada", "layout"]), page).await;
///
/// pages.remove_tag("user:ada").await;
/// assert_eq!(pages.get("/ada").await, None);
/// # }
/// ```
///
/// [`remove_tag`](crate::Cache::remove_tag) with any of the tags removes the value, as after
/// [`set_tagged`](crate::Cache::set_tagged). The tags replace those of an older value. A loader method without `Tagged`
/// keeps the tags of the value that it replaces, if that is live or within its stale window. So a refresh, in the
/// background or by [`refresh_with`](crate::Cache::refresh_with), does not lose them.
///
/// If a tag is removed while its value is being loaded, the removal takes precedence, as that of the key by
/// [`remove`](crate::Cache::remove) does: callers that were already waiting get the loaded value, but it is not stored,
/// and calls that begin later load again. This holds for the tags of the loaded value and for those of the value that
/// it replaces.
///
/// # Cost
///
/// That of [`set_tagged`](crate::Cache::set_tagged): about 30 additional bytes per tagged entry. While a value with
/// tags is being loaded, the cache keeps the names of the tags that are removed in the meantime.
#[derive(Clone, Copy, Debug)]
pub struct Tagged<T>(T);

/// A TTL argument, and tags that do not depend on the value.
#[derive(Clone, Debug)]
pub struct Fixed<T> {
    ttl: T,
    tags: Vec<String>,
}

/// A closure that computes TTL and tags from the value.
#[derive(Clone, Copy, Debug)]
pub struct Computed<F>(F);

impl<T> Tagged<Fixed<T>> {
    /// Gives the loaded value this TTL and these tags.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cache, Tagged};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let prices: Cache<&str, u32> = Cache::new();
    /// let minute = Duration::from_secs(60);
    /// prices.get_or_set_with(&"book", Tagged::new(minute, ["shop:1"]), async || 12).await;
    /// prices.get_or_set_with(&"pen", Tagged::new(minute, ["shop:2"]), async || 3).await;
    ///
    /// // Shop 1 has new prices.
    /// prices.remove_tag("shop:1").await;
    /// assert_eq!((prices.get("book").await, prices.get("pen").await), (None, Some(3)));
    /// # }
    /// ```
    ///
    /// `ttl` is a [`Duration`], or an `Option<Duration>`, in which `None` means the default TTL. If you give no tags,
    /// the loaded value has none, even if the value that it replaces has some.
    pub fn new(ttl: T, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(Fixed { ttl, tags: tags.into_iter().map(Into::into).collect() })
    }
}

impl<F> Tagged<Computed<F>> {
    /// Computes TTL and tags from the loaded value: for tags that only the value shows, such as its author.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cache, Tagged};
    ///
    /// #[derive(Clone)]
    /// struct Article { author: &'static str }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let articles: Cache<u64, Article> = Cache::new();
    /// let hour = Duration::from_secs(3_600);
    /// let by_author = Tagged::by(move |a: &Article| (hour, vec![format!("author:{}", a.author)]));
    /// articles.get_or_set_with(&7, by_author, async || Article { author: "ada" }).await;
    ///
    /// articles.remove_tag("author:ada").await;
    /// assert!(articles.get(&7).await.is_none());
    /// # }
    /// ```
    ///
    /// The closure is called once, when the value has been loaded.
    pub fn by<V>(ttl_and_tags: F) -> Self
    where
        F: Fn(&V) -> (Duration, Vec<String>),
    {
        Self(Computed(ttl_and_tags))
    }
}

impl<V, T: TimeToLive<V>> TimeToLive<V> for Tagged<Fixed<T>> {
    fn of(&self, value: &V) -> Option<Duration> {
        self.0.ttl.of(value)
    }

    fn with_tags(&self, value: &V) -> (Option<Duration>, Option<Vec<String>>) {
        (self.of(value), Some(self.0.tags.clone()))
    }

    fn has_tags(&self) -> bool {
        true
    }
}

impl<V, F: Fn(&V) -> (Duration, Vec<String>)> TimeToLive<V> for Tagged<Computed<F>> {
    fn of(&self, value: &V) -> Option<Duration> {
        Some((self.0.0)(value).0)
    }

    fn with_tags(&self, value: &V) -> (Option<Duration>, Option<Vec<String>>) {
        let (ttl, tags) = (self.0.0)(value);
        (Some(ttl), Some(tags))
    }

    fn has_tags(&self) -> bool {
        true
    }
}
