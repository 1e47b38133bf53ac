//! Calls of all types on Redis.

use std::time::Duration;

use arbitrary::Arbitrary;
use fleeting::{
    Limit, Window,
    redis::{Cache, Client, ExpiringSet, Format, RateLimiter, TimeoutDict},
};
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

type Value = Vec<(u8, String)>;

#[derive(Arbitrary, Debug)]
pub(crate) enum Call {
    Cache(CacheKind, CacheCall),
    Limiter(LimiterKind, LimiterCall),
    Dict(DictCall),
    Set(SetCall),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum CacheKind {
    Plain,
    Packed,
    Near,
    Events,
}

#[derive(Arbitrary, Debug)]
pub(crate) enum CacheCall {
    Get,
    GetMany,
    Set,
    SetMany,
    SetTagged,
    Remove,
    RemoveTag,
    Ttl,
    Expire,
    Update,
    Load,
    Iterate,
    Len,
    Clear,
    Receive,
    Groups,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum LimiterKind {
    Log,
    Buckets,
    Gcra,
}

#[derive(Arbitrary, Debug)]
pub(crate) enum LimiterCall {
    Check(u8),
    Peek,
    Settle(u8),
    Reset,
}

#[derive(Arbitrary, Debug)]
pub(crate) enum DictCall {
    Set,
    Get,
    Ttl,
    Claim,
    Take,
    TakeDead,
    DeadLetters,
    Len,
    Revive,
}

#[derive(Arbitrary, Debug)]
pub(crate) enum SetCall {
    Push,
    Elements,
    Range,
    Pop,
    Len,
}

/// Runs the calls one after another. Each must end, if not by an answer, then by its timeout.
pub(crate) async fn run(url: &str, calls: impl Iterator<Item = Call>) {
    let client = Client::builder(url).timeout(SECOND).lazy().expect("the address is valid");
    for call in calls {
        let ended = timeout(HOUR, async {
            match call {
                Call::Cache(kind, call) => call_cache(&client, kind, call).await,
                Call::Limiter(kind, call) => call_limiter(&client, kind, call).await,
                Call::Dict(call) => call_dict(&client, call).await,
                Call::Set(call) => call_set(&client, call).await,
            }
        });
        assert!(ended.await.is_ok(), "a call waits forever");
    }
}

async fn call_cache(client: &Client, kind: CacheKind, call: CacheCall) {
    let builder = Cache::<String, Value>::builder(client, "cache");
    let builder = match kind {
        CacheKind::Plain => builder,
        CacheKind::Packed => builder.format(Format::MessagePack),
        CacheKind::Near => builder.near(10),
        CacheKind::Events => builder.events(HOUR),
    };
    let Ok(cache) = builder.build() else { return };
    let (key, value) = ("key".to_owned(), vec![(1, "value".to_owned())]);
    match call {
        CacheCall::Get => _ = cache.get("key").await,
        CacheCall::GetMany => _ = cache.get_many(["key", "other"]).await,
        CacheCall::Set => _ = cache.set(key, value).await,
        CacheCall::SetMany => _ = cache.set_many([(key, value)], Some(HOUR)).await,
        CacheCall::SetTagged => _ = cache.set_tagged(key, value, HOUR, ["tag"]).await,
        CacheCall::Remove => _ = cache.remove("key").await,
        CacheCall::RemoveTag => _ = cache.remove_tag("tag").await,
        CacheCall::Ttl => _ = cache.ttl("key").await,
        CacheCall::Expire => _ = cache.expire("key", HOUR).await,
        CacheCall::Update => _ = cache.update("key", |value| value.clear()).await,
        CacheCall::Load => {
            let load = async move || Ok::<_, ()>(value);
            _ = cache.get_or_try_set_with("key", HOUR, load).await;
        }
        CacheCall::Iterate => {
            let mut keys = std::pin::pin!(cache.iter());
            for _ in 0..20 {
                if futures_util::StreamExt::next(&mut keys).await.is_none() {
                    break;
                }
            }
        }
        CacheCall::Len => _ = cache.len().await,
        CacheCall::Clear => _ = cache.clear().await,
        CacheCall::Receive => {
            if let Ok(mut events) = cache.events_lossless("group").await {
                for _ in 0..3 {
                    let _ = timeout(3 * SECOND, events.recv()).await;
                }
            }
        }
        CacheCall::Groups => _ = cache.groups().await,
    }
}

async fn call_limiter(client: &Client, kind: LimiterKind, call: LimiterCall) {
    let window = match kind {
        LimiterKind::Log => Window::Log,
        LimiterKind::Buckets => Window::Buckets(10),
        LimiterKind::Gcra => Window::Gcra,
    };
    let limits = [Limit::new(10, SECOND), Limit::new(u32::MAX, 24 * 365 * 90 * HOUR)];
    let [first, second] = limits;
    let builder = RateLimiter::<String>::builder(client, "limiter").limit(first).limit(second);
    let Ok(limiter) = builder.window(window).build() else { return };
    match call {
        LimiterCall::Check(cost) => _ = limiter.check_n("key", cost.into()).await,
        LimiterCall::Peek => _ = limiter.peek("key").await,
        LimiterCall::Settle(actual) => {
            if let Ok(permit) = limiter.check_n("key", 5).await {
                let _ = permit.settle(actual.into()).await;
            }
        }
        LimiterCall::Reset => _ = limiter.reset("key").await,
    }
}

async fn call_dict(client: &Client, call: DictCall) {
    let Ok(dict) = TimeoutDict::<String, Value>::new(client, "dict") else { return };
    match call {
        DictCall::Set => _ = dict.set("key".into(), vec![], HOUR).await,
        DictCall::Get => _ = dict.get("key").await,
        DictCall::Ttl => _ = dict.ttl("key").await,
        DictCall::Claim => {
            for claim in dict.claim_expired(3, HOUR).await.unwrap_or_default() {
                let _ = claim.extend(HOUR).await;
                let _ = claim.ack().await;
            }
        }
        DictCall::Take => _ = dict.take_expired(3).await,
        DictCall::TakeDead => _ = dict.take_dead(3).await,
        DictCall::DeadLetters => _ = dict.dead_letters(3).await,
        DictCall::Len => _ = (dict.len().await, dict.dead_len().await),
        DictCall::Revive => _ = dict.revive("key", HOUR).await,
    }
}

async fn call_set(client: &Client, call: SetCall) {
    let Ok(set) = ExpiringSet::<String>::new(client, "set", HOUR) else { return };
    match call {
        SetCall::Push => _ = set.push("member".into()).await,
        SetCall::Elements => _ = set.elements().await,
        SetCall::Range => {
            _ = set.range(std::time::SystemTime::UNIX_EPOCH..).await;
        }
        SetCall::Pop => _ = (set.peek().await, set.pop().await),
        SetCall::Len => _ = set.len().await,
    }
}
