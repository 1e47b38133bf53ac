//! Expiring set on a Redis server: a sorted set whose members expire by their scores. Each method is one script, which
//! first removes expired members. The two score layouts are defined in `millis.lua` and `seconds.lua`.

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
    scripts::{MAX_REMOVED, SetScripts, scripts},
};
use super::{
    Client, Error, Format,
    error::unexpected_reply,
    script::{Call, Script},
};

/// A set on a Redis server whose members expire, for users who are online or events of the last minute, shared by many
/// processes.
///
/// Users seen in the last minute by any server:
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
///
/// Members are ordered by score. The score is a time, and a member expires when its score is `ttl` old, as in
/// [`fleeting::ExpiringSet`](crate::ExpiringSet). An `ExpiringSet` is a handle and cheap to clone. All handles with the
/// same name on the same server are one set, and must use the same `ttl` and format.
///
/// # Members and scores
///
/// A member is expired when the server's clock reaches `score + ttl`; no method returns or counts an expired member. If
/// you push it after others with the same score, it may expire up to a millisecond later, after them.
///
/// * Members are compared by their encoded bytes, so equal values must have equal encodings (those of a `HashMap` may
///   differ). If you push an existing member, it moves to its new score.
/// * Scores are times. Those that you pass to [`push_at`](Self::push_at), the ends of a [`range`](Self::range), and all
///   returned scores are whole milliseconds, rounded down. [`push`](Self::push) and [`extend`](Self::extend) keep the
///   fraction of the millisecond, by which members are ordered and expire.
/// * Members with equal scores are all kept, in the order of pushing. If more than 1,024 members have the same score,
///   the last ones may be ordered by their bytes instead. Members with equal scores after the year 2109 are always
///   ordered by their bytes.
/// * A member with a score in the future expires correspondingly later. A push with a score that is `ttl` old or older
///   does not add the member; if the member is in the set, such a push removes it.
///
/// There are no events and no sweeper. An idle set is deleted as a whole when its last member expires (`PEXPIREAT`).
///
/// # Migrating from the Python implementations
///
/// | Python and Redis commands | this crate |
/// | --- | --- |
/// | `ZADD key now value`, `push(value)` | [`push`](Self::push): scored by the server's clock, to the microsecond |
/// | `push(value, score)` | [`push_at`](Self::push_at): accepts any time; use [`push`](Self::push) for the current time |
/// | `push(value, score, unique=True)` | [`push_unique_at`](Self::push_unique_at) |
/// | `extend(values)` | [`extend`](Self::extend): adds all values |
/// | `ZRANGE key 0 -1`, `elements()` | [`elements`](Self::elements) |
/// | `queue[i]`, `queue[i:j]` | [`elements`](Self::elements), then index the vector; by score, [`range`](Self::range) |
/// | `peek()` | [`peek`](Self::peek) |
/// | `pop()` | [`pop`](Self::pop) |
/// | `len(queue)`, `ZCARD key` | [`len`](Self::len) |
/// | `clear()`, `DEL key` | [`clear`](Self::clear) |
/// | `ZREMRANGEBYSCORE key -inf now-ttl`, in a MULTI | not needed: the script of each method begins with it |
/// | `pickle` | [`Format`]: no format executes code when it is decoded |
/// | the set at a bare key | [`compat`](Self::compat) uses the same key; [`new`](Self::new) uses a key with a prefix |
///
/// # On the server
///
/// One sorted set, `prefix:set1:{name}`, whose members are the encoded values and whose scores are milliseconds since
/// the Unix epoch. The fraction of a score orders the members of the same millisecond.
///
/// # Cost
///
/// Each method is one script and one round trip. It takes O(log n), and O(m) for m members that are added, removed,
/// expired or returned. All methods except [`remove_range`](Self::remove_range) are atomic. Each call deletes at most a
/// thousand expired members, so that a large number does not block the server. A set is one key, so a cluster keeps it
/// on one node. Results are returned in one reply: read your set in ranges if it has hundreds of megabytes.
///
/// # Errors
///
/// All methods except the constructors may return errors of the connection and of the server, and [`Error::WrongType`]
/// if the key holds another type. After [`Error::Unanswered`], you do not know whether a push, a pop or a removal was
/// executed; after any other error, it was not. Reads are retried once instead.
///
/// A member that cannot be decoded causes [`Error::Decode`], which names the key of the set. It stays in the set until
/// it expires.
///
/// # Cancel safety
///
/// If the future of a method is dropped before it completes, the server may still execute it. So a
/// [`pop`](Self::pop) may lose its member.
pub struct ExpiringSet<T> {
    state: Arc<SetState>,
    types: PhantomData<fn(T)>,
}

/// State shared by all clones of a handle.
struct SetState {
    client: Client,
    key: Vec<u8>,
    /// In microseconds.
    ttl: u64,
    format: Format,
    unit: ScoreUnit,
}

impl<T> ExpiringSet<T> {
    /// Removes the members with scores in this range, and returns their number.
    ///
    /// ```no_run
    /// # use std::time::{Duration, SystemTime};
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // Forget the users who have not been seen for ten seconds.
    /// let removed = here.remove_range(..SystemTime::now() - Duration::from_secs(10)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Each script and round trip removes a thousand members, so that the server is not blocked for long. Other clients
    /// may see only some of them removed, and members that other clients push in the meantime may remain. The call
    /// takes as long as the server finds members: the timeout of the client applies to each round trip.
    ///
    /// # Errors
    ///
    /// After any error, some of the members may have been removed.
    #[doc(alias = "ZREMRANGEBYSCORE")]
    pub async fn remove_range(&self, scores: impl RangeBounds<SystemTime>) -> Result<usize, Error> {
        let range = self.state.unit.range(&scores);
        let mut removed = 0;
        // Ends when a script finds fewer members than it may remove. Only the server knows their number, so one that
        // always reports a whole batch keeps the call busy until the caller drops it.
        loop {
            let call = self.call(|scripts| &scripts.remove_range).arg(&range);
            // Sent once: the count of a lost reply would be missing from the sum.
            let some: usize = call.send_once(&self.state.client).await?;
            removed += some;
            match some {
                MAX_REMOVED => {}
                0..MAX_REMOVED => return Ok(removed),
                _ => return Err(unexpected_reply("more members were removed than requested")),
            }
        }
    }

    /// Returns the number of live members.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// println!("{} users are online", here.len().await?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> Result<usize, Error> {
        self.call(|scripts| &scripts.len).send_idempotent(&self.state.client).await
    }

    /// Returns whether there is no live member.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }

    /// Removes all members atomically.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(players: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // A new round begins.
    /// players.clear().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "DEL")]
    pub async fn clear(&self) -> Result<(), Error> {
        self.call(|scripts| &scripts.clear).send_once(&self.state.client).await
    }

    fn call(&self, script: impl FnOnce(&'static SetScripts) -> &'static Script) -> Call<'static> {
        let SetState { key, ttl, unit, .. } = &*self.state;
        script(scripts(*unit)).call(&[key]).arg(*ttl)
    }
}

impl<T> ExpiringSet<T>
where
    T: Serialize + DeserializeOwned,
{
    /// Adds `member` with the server's current time as its score, or moves it to that score.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // In each request: the user is online for as long as the TTL of the set.
    /// here.push("ada".into()).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ZADD")]
    pub async fn push(&self, member: T) -> Result<(), Error> {
        self.push_all([member], None, false).await
    }

    /// Adds `member` with this score, or moves it to that score.
    ///
    /// ```no_run
    /// # use std::time::{Duration, SystemTime};
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(readings: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // A sensor sends a reading ten seconds after it was taken.
    /// let taken = SystemTime::now() - Duration::from_secs(10);
    /// readings.push_at("21.5 °C".into(), taken).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The score is your time. If you mix this method with [`push`](Self::push), keep your clocks synchronized with the
    /// server's.
    pub async fn push_at(&self, member: T, score: SystemTime) -> Result<(), Error> {
        self.push_all([member], Some(score), false).await
    }

    /// Adds `member` with this score, or moves it to that score, and removes all other members that have exactly the
    /// same score.
    ///
    /// ```no_run
    /// # use std::time::SystemTime;
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(prices: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // One price per second: a correction replaces it.
    /// let noon = SystemTime::now();
    /// prices.push_unique_at("101.5".into(), noon).await?;
    /// prices.push_unique_at("101.7".into(), noon).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn push_unique_at(&self, member: T, score: SystemTime) -> Result<(), Error> {
        self.push_all([member], Some(score), true).await
    }

    /// Adds all of `members`, in their order, with the server's current time as their score, or moves them to that
    /// score, as one atomic change.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // A guild joins the game.
    /// here.extend(["ada".to_owned(), "bob".to_owned()]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// At most 2,048 members get the same millisecond as their score; further ones get the next millisecond, and so on.
    /// The server needs about as long to add them. A command can contain about a million members.
    pub fn extend(
        &self,
        members: impl IntoIterator<Item = T>,
    ) -> impl Future<Output = Result<(), Error>> {
        // Collected before the future, which would otherwise hold the iterator and might not be `Send`.
        let members: Vec<_> = members.into_iter().collect();
        async move { self.push_all(members, None, false).await }
    }

    /// Returns all members, lowest score first.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// for user in here.elements().await? {
    ///     println!("{user} is online");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ZRANGE")]
    pub async fn elements(&self) -> Result<Vec<T>, Error> {
        self.range(..).await
    }

    /// Returns the members with scores in this range, lowest first. A range whose start is after its end is empty.
    ///
    /// ```no_run
    /// # use std::time::{Duration, SystemTime};
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // The set keeps a day; these users were seen in the last minute.
    /// let users = here.range(SystemTime::now() - Duration::from_secs(60)..).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ZRANGEBYSCORE")]
    pub async fn range(&self, scores: impl RangeBounds<SystemTime>) -> Result<Vec<T>, Error> {
        self.read_range(self.state.unit.range(&scores), -1).await
    }

    /// Returns the member with the lowest score, which expires next.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// if let Some(user) = here.peek().await? {
    ///     println!("of all users, {user} was seen least recently");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek(&self) -> Result<Option<T>, Error> {
        let first = self.read_range(self.state.unit.range(&(..)), 1).await?;
        Ok(first.into_iter().next())
    }

    /// Removes and returns the member with the lowest score.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(waiting: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // Of several servers, one gets the player who has waited longest.
    /// if let Some(player) = waiting.pop().await? {
    ///     println!("{player} may join");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// After [`Error::Decode`], or if the deserializer panics, the member is put back with its score, unless another
    /// client has pushed it in the meantime.
    #[doc(alias = "ZPOPMIN")]
    pub async fn pop(&self) -> Result<Option<T>, Error> {
        let call = self.call(|scripts| &scripts.pop);
        // A retry after a lost reply would remove another member.
        let popped: Vec<Vec<u8>> = call.send_once(&self.state.client).await?;
        let [member, score] = &popped[..] else { return Ok(None) };
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decode(member)));
        // Put back: otherwise it would be lost, even to programs that can decode it.
        if !matches!(decoded, Ok(Ok(_))) {
            let call = self.call(|scripts| &scripts.put_back).arg(member).arg(score);
            let () = call.send_once(&self.state.client).await?;
        }
        decoded.unwrap_or_else(|panic| resume_unwind(panic)).map(Some)
    }

    /// Removes `member` and returns whether it was in the set.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// // Ada logs out.
    /// here.remove("ada").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ZREM")]
    pub async fn remove<Q>(&self, member: &Q) -> Result<bool, Error>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let member = self.state.format.encode(member)?;
        let call = self.call(|scripts| &scripts.remove).arg(member);
        // A retry after a lost reply would return false.
        call.send_once(&self.state.client).await
    }

    /// Returns the score of `member`, or `None` if it is not in the set.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// if let Some(time) = here.score("ada").await? {
    ///     println!("Ada was last seen at {time:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ZSCORE")]
    pub async fn score<Q>(&self, member: &Q) -> Result<Option<SystemTime>, Error>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.stored_score(member).await?.and_then(|score| self.state.unit.time(score)))
    }

    /// Returns whether `member` is in the set.
    ///
    /// ```no_run
    /// # use fleeting::redis::ExpiringSet;
    /// # async fn f(here: ExpiringSet<String>) -> Result<(), fleeting::redis::Error> {
    /// if here.contains("ada").await? {
    ///     println!("Ada is online");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn contains<Q>(&self, member: &Q) -> Result<bool, Error>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(self.stored_score(member).await?.is_some())
    }

    /// Returns the score as stored. Other programs may write one that is not a time.
    async fn stored_score<Q>(&self, member: &Q) -> Result<Option<f64>, Error>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let member = self.state.format.encode(member)?;
        self.call(|scripts| &scripts.score).arg(member).send_idempotent(&self.state.client).await
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
        // Scripts use the server's clock if the score is empty.
        let score = score.map(|score| unit.score(score)).unwrap_or_default();
        let call = self.call(|scripts| &scripts.push).arg(score).arg(u8::from(is_unique));
        // Sent once: a retry after a lost reply would move members behind those that were pushed in the meantime.
        call.arg(members).send_once(client).await
    }

    /// Returns at most `count` members of a range, lowest first; -1 means all.
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
