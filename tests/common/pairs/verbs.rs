//! Calls of the methods that both caches have.

/// Calls a method of both caches. Evaluates to the value that it returns, to the old one if it returns that there is a
/// value, or else to `None`. `$reply!` awaits a call and takes the value out of its `Result`; `$own` calls the methods
/// that are not the same.
macro_rules! call_verb {
    ($cache:ident, $verb:ident, $reply:ident, $own:expr) => {{
        let (key, entry) = (|| KEY.to_owned(), || [(KEY.to_owned(), VERB)]);
        let (ttl, zero) = (VERB_TTL, Duration::ZERO);
        match $verb {
            "get" => $reply!($cache.get(KEY)),
            "get_many" => $reply!($cache.get_many([KEY]))[0],
            "get_with_ttl" => $reply!($cache.get_with_ttl(KEY)).map(|(value, _)| value),
            "get_ex" => $reply!($cache.get_ex(KEY, ttl)),
            "get_ex with a TTL of zero" => $reply!($cache.get_ex(KEY, zero)),
            "contains_key" => $reply!($cache.contains_key(KEY)).then_some(OLD),
            "ttl" => ($reply!($cache.ttl(KEY)) != Ttl::Missing).then_some(OLD),
            "set" => $reply!($cache.set(key(), VERB)),
            "set_ex" => $reply!($cache.set_ex(key(), VERB, ttl)),
            "set_nx" => {
                $reply!($cache.set_nx(key(), VERB, Some(ttl)));
                None
            }
            "set_keep_ttl" => $reply!($cache.set_keep_ttl(key(), VERB)),
            "set_many" => {
                $reply!($cache.set_many(entry(), Some(ttl)));
                None
            }
            "set_tagged" => $reply!($cache.set_tagged(key(), VERB, ttl, ["other"])),
            "update" => $reply!($cache.update(KEY, |value| std::mem::replace(value, VERB))),
            "remove" => $reply!($cache.remove(KEY)),
            "remove_many" => ($reply!($cache.remove_many([KEY])) > 0).then_some(OLD),
            "remove_tag" => {
                $reply!($cache.remove_tag(TAG));
                None
            }
            "clear" => {
                $reply!($cache.clear());
                None
            }
            "expire" => $reply!($cache.expire(KEY, ttl)).then_some(OLD),
            "expire with a TTL of zero" => $reply!($cache.expire(KEY, zero)).then_some(OLD),
            "expire_if" => $reply!($cache.expire_if(KEY, ttl, When::Later)).then_some(OLD),
            "expire_if that does not apply" => {
                $reply!($cache.expire_if(KEY, ttl, When::Sooner)).then_some(OLD)
            }
            "expire_at" => $reply!($cache.expire_at(KEY, Instant::now() + ttl)).then_some(OLD),
            "expire_at in the past" => {
                $reply!($cache.expire_at(KEY, Instant::now())).then_some(OLD)
            }
            "extend" => $reply!($cache.extend(KEY, ttl)).then_some(OLD),
            "persist" => $reply!($cache.persist(KEY)).then_some(OLD),
            "expire_now" => $reply!($cache.expire_now(KEY)),
            "get_or_set_with" => Some($reply!($cache.get_or_set_with(KEY, ttl, async || VERB))),
            "get_or_try_set_with" => {
                let loader = async || Ok::<_, &str>(VERB);
                $reply!($cache.get_or_try_set_with(KEY, ttl, loader)).ok()
            }
            "shutdown" => {
                $cache.shutdown().await;
                None
            }
            _ => $own,
        }
    }};
}

pub(crate) use call_verb;
