//! A sorted set on the server whose members die by their scores: each call is one script, which begins by
//! removing dead ones. `millis.lua` and `seconds.lua` tell how the two layouts differ.

mod builder;
mod scores;
mod scripts;

use std::{
    borrow::Borrow,
    fmt,
    marker::PhantomData,
    ops::RangeBounds,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::SystemTime,
};

use serde::{Serialize, de::DeserializeOwned};

pub use self::builder::ExpiringSetBuilder;
use self::{
    scores::ScoreUnit,
    scripts::{MAX_REMOVED, Scripts, scripts},
};
use super::{
    Client, Error, Format,
    script::{Call, Script},
};

/// A set on the server whose members are ordered by score. The score is a time, and a member dies when its
/// score is `ttl` old: as [`fleeting::ExpiringSet`](crate::ExpiringSet), for many processes.
///
/// A cheap clone. All that use the name on a server share one set, and must give it the same `ttl` and
/// format. A member is dead from the moment at which the server's clock reaches `score + ttl`; each call
/// begins with the dead, so none returns or counts one.
///
/// * A member is in the set once: by its bytes, so it must be written alike each time (a `HashMap` is not).
///   To push it again moves it to its new score.
/// * Scores are times in whole milliseconds; what is finer is cut off. Equal scores keep all their members, in
///   the order in which they were pushed: 1,024 of them for certain, of more the last come in the order of
///   their bytes, as those with a score after the year 2109 do.
/// * A score in the future makes a life longer. One that is `ttl` old or older is dead at once: it does not
///   come in, and where the member is in the set already, it leaves.
///
/// There are no events, and nothing sweeps: an idle set leaves as a whole when its last member has died
/// (`PEXPIREAT`).
///
/// # From the originals
///
/// | there | here |
/// | --- | --- |
/// | `ZADD key now value`, `push(value)` | [`push`](Self::push): by the server's clock, to the microsecond |
/// | `push(value, score)` | [`push_at`](Self::push_at): any time, and none of them means "now" |
/// | `push(value, score, unique=True)` | [`push_unique_at`](Self::push_unique_at) |
/// | `extend(values)` | [`extend`](Self::extend): all of them |
/// | `ZRANGE key 0 -1`, `elements()` | [`elements`](Self::elements) |
/// | `queue[i]`, `queue[i:j]` | [`elements`](Self::elements), and the slice of that; by score [`range`](Self::range) |
/// | `peek()` | [`peek`](Self::peek) |
/// | `pop()` | [`pop`](Self::pop) |
/// | `len(queue)`, `ZCARD key` | [`len`](Self::len) |
/// | `clear()`, `DEL key` | [`clear`](Self::clear) |
/// | `ZREMRANGEBYSCORE key -inf now-ttl`, in a MULTI | nothing: each verb is one script that begins with it |
/// | `pickle` | [`Format`]: none of them runs anything when it is read |
/// | the set at a bare key | [`compat`](Self::compat) on the same; [`new`](Self::new) at a key with the prefix |
///
/// # On the server
///
/// One sorted set, `prefix:set1:{name}`, whose members are the values and whose scores are milliseconds since
/// the Unix epoch. The fraction tells the members of a millisecond apart.
///
/// # Cost
///
/// One script and one round trip a verb; O(log n), and O(m) where m members die, come or are returned. All but
/// [`remove_range`](Self::remove_range) are atomic. Each takes out up to a thousand of the dead, so that many that die at
/// once stop nobody for long. One set is one key, so a cluster keeps it on one node. What is returned is one answer: of a
/// set with hundreds of megabytes, ask for ranges.
///
/// # Errors
///
/// All verbs but the constructors may give those of the connection and of the server, and
/// [`Error::WrongType`] where the key holds something else. After [`Error::Unanswered`] nobody knows whether a
/// push, a pop or a removal was carried out; after all others it was not. Calls that only read are repeated
/// once instead.
///
/// A member that does not decode is [`Error::Decode`], which names the set's key, and stays in the set until
/// it dies.
///
/// # Cancel safety
///
/// A call that is dropped may still be carried out. So a [`pop`](Self::pop) may lose its member.
///
/// # Examples
///
/// Who was here in the last minute, at any of the servers:
///
/// ```no_run
/// use std::time::Duration;
/// use fleeting::redis::{Client, ExpiringSet};
///
/// # async fn f() -> Result<(), fleeting::redis::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let here: ExpiringSet<String> = ExpiringSet::new(&client, "here", Duration::from_secs(60))?;
/// here.push("ada".into()).await?;
/// here.push("bob".into()).await?;
/// here.push("ada".into()).await?;
/// assert_eq!(here.elements().await?, ["bob", "ada"]);
/// # Ok(())
/// # }
/// ```
pub struct ExpiringSet<T> {
    state: Arc<SetState>,
    types: PhantomData<fn(T)>,
}

/// What all clones of a handle share.
struct SetState {
    client: Client,
    key: Vec<u8>,
    /// In microseconds.
    ttl: u64,
    format: Format,
    unit: ScoreUnit,
}

impl<T> ExpiringSet<T> {
    /// Takes the members with these scores out; tells how many there were.
    ///
    /// A thousand a script and a round trip, so that nobody waits long behind it: others may see a part of them out, and
    /// what they push meanwhile may stay.
    ///
    /// # Errors
    ///
    /// After any error, a part may be out.
    #[doc(alias = "ZREMRANGEBYSCORE")]
    pub async fn remove_range(&self, scores: impl RangeBounds<SystemTime>) -> Result<usize, Error> {
        let range = self.state.unit.range(&scores);
        let mut removed = 0;
        loop {
            let call = self.call(|scripts| &scripts.remove_range).arg(&range);
            let some: usize = call.send_once(&self.state.client).await?;
            removed += some;
            if some < MAX_REMOVED {
                return Ok(removed);
            }
        }
    }

    /// How many members live.
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> Result<usize, Error> {
        self.call(|scripts| &scripts.len).send_idempotent(&self.state.client).await
    }

    /// Whether no member lives.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }

    /// Takes all members out, at once however many they are.
    #[doc(alias = "DEL")]
    pub async fn clear(&self) -> Result<(), Error> {
        self.call(|scripts| &scripts.clear).send_once(&self.state.client).await
    }

    fn call(&self, script: impl FnOnce(&'static Scripts) -> &'static Script) -> Call<'static> {
        let SetState { key, ttl, unit, .. } = &*self.state;
        script(scripts(*unit)).call(&[key]).arg(*ttl)
    }
}

impl<T> ExpiringSet<T>
where
    T: Serialize + DeserializeOwned,
{
    /// Moves `member` in, with the server's present as its score.
    #[doc(alias = "ZADD")]
    pub async fn push(&self, member: T) -> Result<(), Error> {
        self.push_all([member], None, false).await
    }

    /// Moves `member` in, at `score`: a time of the caller's, so who mixes it with [`push`](Self::push) needs
    /// clocks that agree with the server's.
    pub async fn push_at(&self, member: T, score: SystemTime) -> Result<(), Error> {
        self.push_all([member], Some(score), false).await
    }

    /// Moves `member` in, at `score`, in place of all others that are at that very score.
    pub async fn push_unique_at(&self, member: T, score: SystemTime) -> Result<(), Error> {
        self.push_all([member], Some(score), true).await
    }

    /// Moves all of `members` in, in their order, with the server's present as their score; nobody sees a part
    /// of them.
    ///
    /// A millisecond is the present of up to 2,048 of them, the next one that of those behind, and so on; the
    /// server needs about as long. About a million are as many as a command may carry.
    pub fn extend(
        &self,
        members: impl IntoIterator<Item = T>,
    ) -> impl Future<Output = Result<(), Error>> {
        // The caller's iterator may be of one thread alone, and the future is to go to any.
        let members: Vec<_> = members.into_iter().collect();
        async move { self.push_all(members, None, false).await }
    }

    /// The members, lowest score first.
    #[doc(alias = "ZRANGE")]
    pub async fn elements(&self) -> Result<Vec<T>, Error> {
        self.range(..).await
    }

    /// The members with these scores, lowest first. A range that is the wrong way round has none.
    #[doc(alias = "ZRANGEBYSCORE")]
    pub async fn range(&self, scores: impl RangeBounds<SystemTime>) -> Result<Vec<T>, Error> {
        self.read_range(self.state.unit.range(&scores), -1).await
    }

    /// The member with the lowest score: the one that dies next.
    pub async fn peek(&self) -> Result<Option<T>, Error> {
        let first = self.read_range(self.state.unit.range(&(..)), 1).await?;
        Ok(first.into_iter().next())
    }

    /// Takes the member with the lowest score out.
    ///
    /// # Errors
    ///
    /// After [`Error::Decode`], or a panic of what decodes it, the member is back, at the score that it had, unless
    /// somebody pushed it again meanwhile.
    #[doc(alias = "ZPOPMIN")]
    pub async fn pop(&self) -> Result<Option<T>, Error> {
        let call = self.call(|scripts| &scripts.pop);
        let popped: Vec<Vec<u8>> = call.send_once(&self.state.client).await?;
        let [member, score] = &popped[..] else { return Ok(None) };
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decode(member)));
        // Nobody would have it otherwise, not even a program that can read it.
        if !matches!(decoded, Ok(Ok(_))) {
            let call = self.call(|scripts| &scripts.put_back).arg(member).arg(score);
            let () = call.send_once(&self.state.client).await?;
        }
        decoded.unwrap_or_else(|panic| resume_unwind(panic)).map(Some)
    }

    /// Takes `member` out; tells whether it was there.
    #[doc(alias = "ZREM")]
    pub async fn remove<Q>(&self, member: &Q) -> Result<bool, Error>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let member = self.state.format.encode(member)?;
        let call = self.call(|scripts| &scripts.remove).arg(member);
        call.send_once(&self.state.client).await
    }

    /// The score of `member`.
    #[doc(alias = "ZSCORE")]
    pub async fn score<Q>(&self, member: &Q) -> Result<Option<SystemTime>, Error>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let member = self.state.format.encode(member)?;
        let call = self.call(|scripts| &scripts.score).arg(member);
        let score: Option<f64> = call.send_idempotent(&self.state.client).await?;
        Ok(score.and_then(|score| self.state.unit.time(score)))
    }

    /// Whether `member` is in the set.
    pub async fn contains<Q>(&self, member: &Q) -> Result<bool, Error>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.score(member).await?.is_some())
    }

    async fn push_all(
        &self,
        members: impl IntoIterator<Item = T>,
        score: Option<SystemTime>,
        is_unique: bool,
    ) -> Result<(), Error> {
        let SetState { client, format, unit, .. } = &*self.state;
        let members = members.into_iter().map(|member| format.encode(&member));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Ok(());
        }
        // An empty score is the present, by the server's clock.
        let score = score.map(|score| unit.score(score)).unwrap_or_default();
        let call = self.call(|scripts| &scripts.push).arg(score).arg(u8::from(is_unique));
        call.arg(members).send_once(client).await
    }

    /// At most `count` members of a range, lowest first; all with -1.
    async fn read_range(&self, range: [String; 2], count: i64) -> Result<Vec<T>, Error> {
        let call = self.call(|scripts| &scripts.range).arg(&range).arg(count);
        let members: Vec<Vec<u8>> = call.send_idempotent(&self.state.client.for_batches()).await?;
        members.iter().map(|member| self.decode(member)).collect()
    }

    fn decode(&self, member: &[u8]) -> Result<T, Error> {
        self.state.format.decode(member, || self.state.key.clone())
    }
}

impl<T> Clone for ExpiringSet<T> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), types: PhantomData }
    }
}

impl<T> fmt::Debug for ExpiringSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringSet")
            .field("key", &String::from_utf8_lossy(&self.state.key))
            .finish_non_exhaustive()
    }
}
