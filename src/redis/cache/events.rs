//! Subscriptions to expirations: [`Events`] for all subscribers, [`LosslessEvents`] for one subscriber of a group, and
//! callbacks. Also the shutdown, which ends all of them.

use std::{
    fmt,
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use futures_util::{FutureExt, stream::unfold};
use serde::de::DeserializeOwned;
use tokio::{
    runtime::Handle,
    sync::broadcast::{Receiver, error::RecvError},
    task::JoinHandle,
};

use super::{
    super::Error,
    Cache, broadcast,
    cache_state::BroadcastItem,
    commands::Commands,
    consumer_group::{self, Acknowledgement, EventDelivery, GroupSubscription},
    shard_consumer::{Redelivery, StreamId},
};
use crate::engine::{
    event::{Event, Lagged},
    tasks::spawn,
};

/// A stream of expirations that is broadcast to all subscribers. Created by [`Cache::events`].
///
/// ```no_run
/// # use fleeting::redis::Cache;
/// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
/// let mut ended = sessions.events().await?;
/// while let Some(event) = ended.recv().await {
///     match event {
///         Ok(event) => println!("the session of user {} has ended", event.value),
///         Err(missed) => println!("{missed}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// If your subscriber reads too slowly, it misses the oldest events; [`Lagged`] reports how many. It also reports the
/// events that the server [deleted](super::CacheBuilder::events) while this process could not reach it, usually those
/// that were older than a minute. An event that cannot be decoded counts as missed. If the server loses its data, the
/// number of missed events is unknown and not reported.
///
/// When you drop the last [`Cache`] handle or [shut the cache down](Cache::shutdown), the stream returns the events
/// that this process has already read, and then ends. It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription exists"]
pub struct Events<K, V>(Pin<Box<dyn Stream<Item = BroadcastItem<K, V>> + Send>>);

/// A stream of expirations in which each event is delivered to one of the subscribers of a group, at least once.
/// Returned by [`Cache::events_lossless`].
///
/// ```no_run
/// # use fleeting::redis::Cache;
/// # async fn f(carts: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
/// // In each process: a cart that expires leads to one reminder.
/// let mut expired = carts.events_lossless("reminders").await?;
/// while let Some(event) = expired.recv().await {
///     println!("{} gets a reminder", event?.key);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Acknowledgement
///
/// You acknowledge an event by [`ack`](LosslessEvents::ack), or when you request the next one. Until then, this
/// subscriber holds a lease on the event and renews it, no matter how long the event takes you. If the process crashes
/// or cannot reach the server, its events are delivered to other subscribers of the group when their
/// [lease](super::CacheBuilder::lease) has expired. The same applies to the last event if you drop the subscription
/// before you have acknowledged it. You can give an event back by [`retry_in`](LosslessEvents::retry_in) and
/// [`fail`](LosslessEvents::fail).
///
/// # Lost events
///
/// Events that the group did not acknowledge within their [retention](super::CacheBuilder::events) are lost, unless a
/// subscriber still holds them. So are events that were delivered and given back, if the retention passes before they
/// are delivered again. One of the subscribers receives the number of lost events as [`Error::Missed`]. In the end,
/// each event since the group was created was either acknowledged, or [dead](LosslessEvents::fail) because its
/// processing had failed, or counted in one of these numbers, once. A number that another subscriber receives again
/// because the first crashed, or stalled for longer than its lease, counts once, too.
///
/// The sum is exact while subscribers renew their leases. An event that one of them holds for longer than the retention
/// is not counted if its process crashes. It may be counted twice if its subscriber stalls for longer than the lease,
/// or loses its connection. If the server loses its data, such a number may be lost, too.
///
/// # Reading ahead, and the end
///
/// Up to 1,024 events, or about 16 MiB, are read ahead into this process. If you drop the subscription, unread events
/// and numbers are given back immediately.
///
/// When you drop the last [`Cache`] handle or [shut the cache down](Cache::shutdown), the stream returns the events
/// that this process has already read, and then ends. It does not keep the cache alive.
#[must_use = "events are only delivered while the subscription exists"]
pub struct LosslessEvents<K, V> {
    commands: Arc<Commands>,
    group: String,
    subscription: GroupSubscription<K, V>,
    /// The latest event, until it is acknowledged.
    last: Option<StreamId>,
}

impl<K, V> Cache<K, V>
where
    K: DeserializeOwned + Send + Sync + 'static,
    V: DeserializeOwned + Send + Sync + 'static,
{
    /// Subscribes to all expirations from now on, by all processes.
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
    ///         Ok(event) => println!("{} has expired", event.key),
    ///         Err(lagged) => println!("{lagged}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The lag is at most [`poll_every`](super::CacheBuilder::poll_every) and two round trips, as long as the
    /// subscriber keeps up. One task feeds all subscriptions of a cache in one process. If it is running already, a new
    /// subscription may also receive expirations from before it that the task has not read yet, usually those of the
    /// last [`poll_every`](super::CacheBuilder::poll_every).
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] if the cache was built without [events](super::CacheBuilder::events), and the errors [of all
    /// methods](Cache#errors).
    pub async fn events(&self) -> Result<Events<K, V>, Error> {
        self.require_events()?;
        let receiver = broadcast::subscribe(&self.state).await?;
        self.check_eviction();
        Ok(Events(Box::pin(unfold(receiver, recv_item))))
    }

    /// Subscribes to expirations as one subscriber of `group`: each event is delivered to one subscriber of the group,
    /// at least once.
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
    ///     println!("{} has expired", event.key);
    ///     events.ack().await?; // or the next `recv` does
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A new group receives the events from its creation on. The server remembers the group until it is
    /// [removed](Cache::remove_group), even after a period without events that is longer than the
    /// [retention](super::CacheBuilder::events). Events that occur while the group has no subscriber are delivered to
    /// its next subscriber, if that subscribes within the retention; otherwise, it receives their number.
    ///
    /// The lag is at most [`poll_every`](super::CacheBuilder::poll_every) and two round trips, as long as the
    /// subscribers keep up. Events of one key are delivered in the order in which they occurred, but several
    /// subscribers process theirs concurrently.
    ///
    /// The name `fleeting:restored` is reserved.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] if the cache was built without [events](super::CacheBuilder::events), [`Error::Name`] if the
    /// name of the group is reserved, and the errors [of all methods](Cache#errors).
    pub async fn events_lossless(&self, group: &str) -> Result<LosslessEvents<K, V>, Error> {
        self.require_events()?;
        let subscription = consumer_group::join(&self.state, group).await?;
        self.check_eviction();
        let (commands, group) = (self.state.commands.clone(), group.to_owned());
        Ok(LosslessEvents { commands, group, subscription, last: None })
    }

    /// Spawns a task that subscribes to `group` and awaits `callback` for each event, one after the other.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::{Cache, Client};
    /// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
    /// let carts: Cache<String, u32> =
    ///     Cache::builder(&client, "carts").events(Duration::from_secs(3_600)).build()?;
    /// carts.on_expired("reminders", async |event| {
    ///     println!("{} has left goods for {} euros in the cart", event.key, event.value);
    /// }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// As with [`events_lossless`](Cache::events_lossless), each event is delivered to one subscriber of the group, at
    /// least once. It is acknowledged when the callback has returned or panicked. Errors of the subscription are
    /// logged. A panic in the callback is logged and has no other effect. The closure is cloned for each call, as axum
    /// does with handlers: share your mutable state in an `Arc`. The task ends with the cache, or if you stop it with
    /// [`JoinHandle::abort`].
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] if the cache was built without [events](super::CacheBuilder::events), and the errors [of all
    /// methods](Cache#errors).
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
        // The task holds no cache handle, or the cache would never end.
        let task = Box::pin(async move {
            while let Some(event) = events.recv().await {
                let event = match event {
                    Ok(event) => event,
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(cache = name, error, "failed to read an expiration");
                        continue;
                    }
                };
                let callback = callback.clone();
                // Unwind safe: each call has its own clone of the callback, which is dropped with the panic.
                let call = AssertUnwindSafe(async move { callback(event).await });
                if call.catch_unwind().await.is_err() {
                    tracing::error!(cache = name, "on_expired callback panicked");
                }
                // After a panic, too: otherwise the same event would be delivered, and panic, forever.
                events.acknowledge();
            }
        });
        Ok(spawn(&Handle::current(), "on_expired", &self.state.name, task))
    }

    /// Ends all subscriptions of this cache in this process, after they have returned the events that this process has
    /// already read.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// let mut expired = carts.events_lossless("reminders").await?;
    /// carts.shutdown().await;
    /// while let Some(event) = expired.recv().await {
    ///     println!("the last events, then the end: {}", event?.key);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Reads and writes continue to work. The method waits for neither the subscribers nor the server.
    pub async fn shutdown(&self) {
        self.state.stop.send_replace(true);
    }
}

impl<K, V> Events<K, V> {
    /// Returns the next event, or the number of events missed before it; `None` when the stream has ended.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(sessions: Cache<String, u64>) -> Result<(), fleeting::redis::Error> {
    /// let mut ended = sessions.events().await?;
    /// while let Some(event) = ended.recv().await {
    ///     match event {
    ///         Ok(event) => println!("the session of user {} has ended", event.value),
    ///         Err(missed) => println!("{missed}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped before it completes, no event is lost.
    pub async fn recv(&mut self) -> Option<Result<Arc<Event<K, V>>, Lagged>> {
        poll_fn(|cx| self.0.as_mut().poll_next(cx)).await
    }
}

impl<K, V> LosslessEvents<K, V> {
    /// Acknowledges the previous event and returns the next one; `None` when the stream has ended.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// let mut expired = carts.events_lossless("reminders").await?;
    /// while let Some(event) = expired.recv().await {
    ///     // The next call of `recv` acknowledges it.
    ///     println!("{} gets a reminder", event?.key);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Decode`] for an event that cannot be decoded. This is a failed attempt: the event is delivered again
    ///   after its lease, perhaps to a subscriber of another release, until it is [dead](LosslessEvents::fail).
    /// - [`Error::Missed`] if events were lost.
    /// - The error of the connection if the server becomes unreachable, once per outage.
    /// - [`Error::GroupRemoved`] if the group was removed. This is the last item. All other errors do not end the
    ///   stream: the next call waits for the next event.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, no event is lost. The previous event may be acknowledged
    /// nevertheless.
    pub async fn recv(&mut self) -> Option<Result<Event<K, V>, Error>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Acknowledges the latest event, so that it is not delivered again. Does nothing if it has been acknowledged
    /// already.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// let mut expired = carts.events_lossless("reminders").await?;
    /// if let Some(event) = expired.recv().await {
    ///     println!("{} gets a reminder", event?.key);
    ///     expired.ack().await?; // the process may end now
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors [of all methods](Cache#errors). You may then get the event again, and can repeat the call.
    pub async fn ack(&mut self) -> Result<(), Error> {
        if let Some(id) = &self.last {
            let call = self.commands.ack(id.shard, &self.group, &id.entry);
            call.send_idempotent::<usize>(&self.commands.client).await?;
            // The task stops renewing the lease. It also acks the event again, which changes nothing.
            self.acknowledge();
        }
        Ok(())
    }

    /// Gives the latest event back, to be delivered again in `delay` to any subscriber of the group; returns false if
    /// there is none, or if it was acknowledged or given back already.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// # let is_night = || true;
    /// let mut expired = carts.events_lossless("reminders").await?;
    /// while let Some(event) = expired.recv().await {
    ///     let event = event?;
    ///     if is_night() {
    ///         expired.retry_in(Duration::from_secs(8 * 3_600)).await?;
    ///     } else {
    ///         println!("{} gets a reminder", event.key);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// This counts as a failed attempt: see [`fail`](LosslessEvents::fail). This subscriber renews its lease until the
    /// delay has passed. If the subscription is dropped before, the event is delivered again after the delay or its
    /// lease, whichever is shorter. If the process crashes, the event is delivered again when the lease has expired,
    /// and the attempt does not count. No round trip: the task of the subscription informs the server with its next
    /// poll.
    ///
    /// # Errors
    ///
    /// None at present.
    ///
    /// # Cancel safety
    ///
    /// The event is given back at the first poll of the future, which completes it.
    pub async fn retry_in(&mut self, delay: Duration) -> Result<bool, Error> {
        Ok(self.give_back(Redelivery::Delay(delay), None))
    }

    /// Gives the latest event back because its processing failed, to be delivered again after a backoff of 1 s, which
    /// doubles with each failed attempt up to 1 min, with jitter. Returns false if there is no such event, or if it was
    /// acknowledged or given back already.
    ///
    /// ```no_run
    /// # use fleeting::redis::Cache;
    /// # async fn f(carts: Cache<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// # let send = async |_: &String| Err::<(), _>("no connection");
    /// let mut expired = carts.events_lossless("reminders").await?;
    /// while let Some(event) = expired.recv().await {
    ///     if let Err(error) = send(&event?.key).await {
    ///         expired.fail(error).await?; // again in about a second
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An event whose processing failed 16 times is dead: `reason` is logged as an error, and the event is not
    /// delivered again. It was delivered, so it does not count as [missed](Error::Missed); an event that could not be
    /// decoded 16 times does, when its retention has passed. Crashes of subscribers are not failed attempts.
    ///
    /// # Errors
    ///
    /// None at present.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`retry_in`](LosslessEvents::retry_in).
    pub async fn fail(&mut self, reason: impl Into<String>) -> Result<bool, Error> {
        Ok(self.give_back(Redelivery::Backoff, Some(reason.into())))
    }

    fn give_back(&mut self, after: Redelivery, reason: Option<String>) -> bool {
        let Some(id) = self.last.take() else { return false };
        self.send(Acknowledgement::Retry(id, after, reason));
        true
    }

    /// Hands the acknowledgement to the task, which sends it with its next poll.
    fn acknowledge(&mut self) {
        if let Some(id) = self.last.take() {
            self.send(Acknowledgement::Ack(id));
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event<K, V>, Error>>> {
        self.acknowledge();
        self.subscription.deliveries.poll_recv(cx).map(|delivery| match delivery {
            // The error is the last item.
            None => {
                let was_removed = self.subscription.is_removed.swap(false, Relaxed);
                was_removed.then_some(Err(Error::GroupRemoved))
            }
            Some(delivery) => self.receive(delivery),
        })
    }

    fn receive(&mut self, delivery: EventDelivery<K, V>) -> Option<Result<Event<K, V>, Error>> {
        match delivery {
            EventDelivery::Event(id, event, size) => {
                self.last = Some(id);
                self.release_bytes(size);
                Some(Ok(event))
            }
            EventDelivery::Undecodable(id, error, size) => {
                self.release_bytes(size);
                // A subscriber of another release may be able to decode it.
                let reason = Some(error.to_string());
                self.send(Acknowledgement::Retry(id, Redelivery::Lease, reason));
                Some(Err(error))
            }
            EventDelivery::Missed(events) => {
                self.subscription.counters.missed(events);
                self.send(Acknowledgement::Missed);
                Some(Err(Error::Missed(events)))
            }
            EventDelivery::Unreachable(error) => Some(Err(error)),
        }
    }

    fn send(&self, acknowledgement: Acknowledgement) {
        // The task receives until this is dropped. If its runtime was shut down, the leases expire by themselves.
        let _ = self.subscription.acknowledgements.send(acknowledgement);
    }

    fn release_bytes(&self, size: usize) {
        self.subscription.buffered_bytes.fetch_sub(size, Relaxed);
    }
}

impl<K, V> Drop for LosslessEvents<K, V> {
    fn drop(&mut self) {
        // Closed before it is drained, so that the task cannot add a delivery that would be missed here.
        self.subscription.deliveries.close();
        while let Ok(delivery) = self.subscription.deliveries.try_recv() {
            if let EventDelivery::Event(id, ..) | EventDelivery::Undecodable(id, ..) = delivery {
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

async fn recv_item<K, V>(
    mut receiver: Receiver<BroadcastItem<K, V>>,
) -> Option<(BroadcastItem<K, V>, Receiver<BroadcastItem<K, V>>)> {
    let item = match receiver.recv().await {
        Ok(item) => item,
        Err(RecvError::Lagged(missed)) => Err(Lagged(missed)),
        Err(RecvError::Closed) => return None,
    };
    Some((item, receiver))
}
