//! What users get of the streams of expirations: [`Events`] for all who listen, [`LosslessEvents`] for one of a
//! group, a callback, and the end of all of them.

use std::{
    fmt,
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_util::{FutureExt, stream::unfold};
use serde::de::DeserializeOwned;
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    task::JoinHandle,
};

use super::{
    super::Error,
    Cache, broadcast,
    commands::Commands,
    consumer_group::{self, Acknowledgement, Delivery, StreamId, Subscription},
    state::BroadcastItem,
};
use crate::engine::event::{Event, Lagged};

/// What expires, told to all who listen. Made by [`Cache::events`].
///
/// Who reads too slowly misses the oldest, and is told how many by [`Lagged`]; so is who could not reach the
/// server while expirations came and went there. What can't be decoded counts as missed.
///
/// The stream ends, after what it still holds, when the last [`Cache`] handle is dropped or the cache is
/// [shut down](Cache::shutdown). It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription lives"]
pub struct Events<K, V>(Pin<Box<dyn Stream<Item = BroadcastItem<K, V>> + Send>>);

/// What expires, told to one of the subscribers of a group, at least once. Made by
/// [`Cache::events_lossless`].
///
/// An event is acknowledged when the next one is asked for, or by [`ack`](LosslessEvents::ack). Until then it
/// is lent to this subscriber, who renews its lease for as long as it lives, however long an event takes. Where
/// the process dies, or can't reach the server, its events come to others of the group once their
/// [lease](super::CacheBuilder::lease) is over; so does the last one, where the subscription is dropped before
/// it was acknowledged. Up to 1,024 events are read ahead, 16 MiB or
/// so; those that wait when the subscription is dropped are
/// given back at once.
///
/// The stream ends, after what it still holds, when the last [`Cache`] handle is dropped or the cache is
/// [shut down](Cache::shutdown). It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription lives"]
pub struct LosslessEvents<K, V> {
    commands: Arc<Commands>,
    group: String,
    subscription: Subscription<K, V>,
    /// The event that came last, until it is acknowledged.
    last: Option<StreamId>,
}

impl<K, V> Cache<K, V>
where
    K: DeserializeOwned + Send + Sync + 'static,
    V: DeserializeOwned + Send + Sync + 'static,
{
    /// A stream of what expires from now on, in all processes, told to each who listens.
    ///
    /// It lags by [`poll_every`](super::CacheBuilder::poll_every) and a round trip. All streams of a cache in
    /// one process are filled by one task.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use fleeting::redis::{Cache, Client};
    ///
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let hour = Duration::from_secs(3_600);
    /// let sessions: Cache<String, u64> = Cache::builder(&client, "sessions").events(hour).build()?;
    /// let mut events = sessions.events().await?;
    /// while let Some(event) = events.recv().await {
    ///     match event {
    ///         Ok(event) => println!("{} has left", event.key),
    ///         Err(lagged) => println!("{lagged}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] where the cache was built without [events](super::CacheBuilder::events), and those of
    /// every verb.
    pub async fn events(&self) -> Result<Events<K, V>, Error> {
        self.require_events()?;
        let receiver = broadcast::subscribe(&self.state).await?;
        Ok(Events(Box::pin(unfold(receiver, next))))
    }

    /// A stream of what expires, told to one of all subscribers of `group`, at least once.
    ///
    /// A group that is new is told what expires from now on. It stays on the server for ever: what expires while it
    /// has no subscriber waits for the next one, within the [retention](super::CacheBuilder::events), also where nothing
    /// expired for longer than that before.
    ///
    /// It lags by [`poll_every`](super::CacheBuilder::poll_every) and a round trip, as long as its subscribers
    /// are fast enough. Events of one key come in the order in which they happened, but those of several
    /// subscribers are handled side by side.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use fleeting::redis::{Cache, Client};
    ///
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let hour = Duration::from_secs(3_600);
    /// let sessions: Cache<String, u64> = Cache::builder(&client, "sessions").events(hour).build()?;
    /// let mut events = sessions.events_lossless("mailers").await?;
    /// while let Some(event) = events.recv().await {
    ///     let event = event?;
    ///     println!("good-bye to {}", event.key);
    ///     events.ack().await?; // or the next `recv` does
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] where the cache was built without [events](super::CacheBuilder::events), and those of
    /// every verb.
    pub async fn events_lossless(&self, group: &str) -> Result<LosslessEvents<K, V>, Error> {
        self.require_events()?;
        let subscription = consumer_group::join(&self.state, group).await?;
        let (commands, group) = (self.state.commands.clone(), group.to_owned());
        Ok(LosslessEvents { commands, group, subscription, last: None })
    }

    /// Calls and awaits `callback` for each value that comes to this subscriber of `group`, one after the
    /// other, in a task of its own; acknowledges it afterwards.
    ///
    /// As from [`events_lossless`](Cache::events_lossless), each comes to one subscriber of the group, at
    /// least once. What can't be read is logged. A panic in the callback is logged and harms nothing. As a
    /// handler of axum, the closure is cloned for each call: share what it changes in an `Arc`.
    /// [`JoinHandle::abort`] ends it; so does the end of the cache.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] where the cache was built without [events](super::CacheBuilder::events), and those of
    /// every verb.
    pub async fn on_expired<F, Fut>(
        &self,
        group: &str,
        callback: F,
    ) -> Result<JoinHandle<()>, Error>
    where
        F: FnOnce(Event<K, V>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut events = self.events_lossless(group).await?;
        let name = self.state.name.clone();
        // The task holds no cache, so that it ends with the last handle.
        Ok(tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                let event = match event {
                    Ok(event) => event,
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(cache = name, error, "an expiration can't be read");
                        continue;
                    }
                };
                let callback = callback.clone();
                // Nothing of the callback is used after a panic: each call has a clone of its own.
                let call = AssertUnwindSafe(async move { callback(event).await });
                if call.catch_unwind().await.is_err() {
                    tracing::error!(cache = name, "the callback of on_expired panicked");
                }
                // Also after a panic: it would panic again with the same event, for ever.
                events.acknowledge();
            }
        }))
    }

    /// Ends the streams of this cache in this process, after what they hold. Reads and writes still work.
    ///
    /// It waits for no subscriber, and for no server.
    pub async fn shutdown(&self) {
        self.state.stop.send_replace(true);
    }

    fn require_events(&self) -> Result<(), Error> {
        if self.state.commands.has_events() { Ok(()) } else { Err(Error::NoEvents) }
    }
}

impl<K, V> Events<K, V> {
    /// The next event, or how many were missed before it; `None` when the stream has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a call that is dropped before it is done has taken nothing.
    pub async fn recv(&mut self) -> Option<Result<Arc<Event<K, V>>, Lagged>> {
        poll_fn(|cx| self.0.as_mut().poll_next(cx)).await
    }
}

impl<K, V> LosslessEvents<K, V> {
    /// The next event; `None` when the stream has ended. Acknowledges the one before.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] for an event that can't be read, which then won't come again; and what a verb says,
    /// once, when the server can't be reached. No error ends the stream: the next call goes on, and waits.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped before it is done has taken nothing, but has acknowledged the event before.
    pub async fn recv(&mut self) -> Option<Result<Event<K, V>, Error>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Acknowledges the event that was told last: it won't come again. Nothing where that is done.
    ///
    /// # Errors
    ///
    /// Those of a verb. The event may then come again, and can be acknowledged again.
    pub async fn ack(&mut self) -> Result<(), Error> {
        if let Some(id) = &self.last {
            let call = self.commands.ack(id.shard, &self.group, &id.entry);
            call.send_idempotent::<usize>(&self.commands.client).await?;
            // The task tells the server again, which changes nothing, and renews its lease no more.
            self.acknowledge();
        }
        Ok(())
    }

    /// With the task's next poll.
    fn acknowledge(&mut self) {
        if let Some(id) = self.last.take() {
            self.send(Acknowledgement::Ack(id));
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event<K, V>, Error>>> {
        self.acknowledge();
        self.subscription.deliveries.poll_recv(cx).map(|delivery| match delivery? {
            Delivery::Event(id, event, size) => {
                self.last = Some(id);
                self.no_longer_waits(size);
                Some(Ok(event))
            }
            Delivery::Undecodable(id, error, size) => {
                self.no_longer_waits(size);
                // Nobody of the group will read it better: it would come again for ever.
                self.send(Acknowledgement::Ack(id));
                Some(Err(error))
            }
            Delivery::Unreachable(error) => Some(Err(error)),
        })
    }

    fn send(&self, acknowledgement: Acknowledgement) {
        // The task hears until this is dropped, or its runtime is gone and with it all leases.
        let _ = self.subscription.acknowledgements.send(acknowledgement);
    }

    fn no_longer_waits(&self, size: usize) {
        self.subscription.waiting_bytes.fetch_sub(size, Relaxed);
    }
}

impl<K, V> Drop for LosslessEvents<K, V> {
    fn drop(&mut self) {
        // First, so that the task sends nothing into it that would be missed here.
        self.subscription.deliveries.close();
        while let Ok(delivery) = self.subscription.deliveries.try_recv() {
            if let Delivery::Event(id, ..) | Delivery::Undecodable(id, ..) = delivery {
                self.send(Acknowledgement::Nack(id));
            }
        }
    }
}

impl<K, V> Stream for Events<K, V> {
    type Item = Result<Arc<Event<K, V>>, Lagged>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl<K, V> Stream for LosslessEvents<K, V> {
    type Item = Result<Event<K, V>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
    }
}

impl<K, V> Unpin for LosslessEvents<K, V> {}

impl<K, V> fmt::Debug for Events<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl<K, V> fmt::Debug for LosslessEvents<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LosslessEvents")
            .field("group", &self.group)
            .field("unread", &self.subscription.deliveries.len())
            .finish()
    }
}

async fn next<K, V>(
    mut receiver: Receiver<BroadcastItem<K, V>>,
) -> Option<(BroadcastItem<K, V>, Receiver<BroadcastItem<K, V>>)> {
    let item = match receiver.recv().await {
        Ok(item) => item,
        Err(RecvError::Lagged(missed)) => Err(Lagged(missed)),
        Err(RecvError::Closed) => return None,
    };
    Some((item, receiver))
}
