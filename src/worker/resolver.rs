//! Looks names up for calls, and lets the guard check what comes out.
//!
//! # Invariants
//! 1. An address that the guard has not seen leaves this room to nobody.
//! 2. A name has at most one look-up under way, and all names together [`LOOKUPS`]: a name server that hangs takes no more
//!    threads than that.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::{Semaphore, watch};
use url::Url;

use super::guard::{Denied, Guard};

/// Look-ups at one time. The system's resolver takes a thread for each.
const LOOKUPS: usize = 64;

/// The addresses of a name, once they are known.
pub type Addresses = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;
/// How names are looked up.
pub type Lookup = Arc<dyn Fn(String) -> Addresses + Send + Sync>;

/// The system's resolver.
#[must_use]
pub fn system() -> Lookup {
    Arc::new(|name| {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    })
}

/// Why a name has no address.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{name}: {why}")]
pub(super) struct Unresolved {
    name: String,
    why: Arc<str>,
}

type AnyError = Box<dyn StdError + Send + Sync>;
type Answer = Result<Arc<[IpAddr]>, Arc<str>>;

/// What reqwest asks, and who connects for calls over gRPC.
pub(super) struct Resolver {
    guard: Arc<Guard>,
    names: Arc<Names>,
}

struct Names {
    lookup: Lookup,
    under_way: Mutex<HashMap<String, watch::Receiver<Option<Answer>>>>,
    room: Semaphore,
}

impl Resolver {
    pub(super) fn new(guard: Arc<Guard>, lookup: Lookup) -> Self {
        let room = Semaphore::new(LOOKUPS);
        let names = Names { lookup, under_way: Mutex::new(HashMap::new()), room };
        Self { guard, names: Arc::new(names) }
    }
}

impl Names {
    /// Joins the look-up that is under way, or begins one. It goes on if the call that began it gives up.
    async fn addresses(self: Arc<Self>, name: String) -> Answer {
        let mut answer = {
            let mut under_way = self.under_way.lock();
            // One whose other end has gone was cut off.
            let joined = under_way.get(&name).filter(|answer| answer.has_changed().is_ok());
            joined.cloned().unwrap_or_else(|| {
                let (tell, answer) = watch::channel(None);
                under_way.insert(name.clone(), answer.clone());
                let names = Arc::clone(&self);
                let name = name.clone();
                tokio::spawn(async move {
                    let found = names.look_up(&name).await;
                    names.under_way.lock().remove(&name);
                    tell.send_replace(Some(found));
                });
                answer
            })
        };
        let ended = || Err("the look-up was cut off".into());
        match answer.wait_for(Option::is_some).await {
            Ok(found) => found.clone().unwrap_or_else(ended),
            Err(_) => ended(),
        }
    }

    async fn look_up(&self, name: &str) -> Answer {
        // The semaphore is never closed.
        let _room = self.room.acquire().await;
        match (self.lookup)(name.to_owned()).await {
            Ok(found) if found.is_empty() => Err("it has no address".into()),
            Ok(found) => Ok(found.into()),
            Err(error) => Err(error.to_string().into()),
        }
    }
}

impl Resolver {
    /// The addresses of a name, each of which may be called.
    pub(super) fn checked(
        &self,
        name: String,
    ) -> impl Future<Output = Result<Vec<IpAddr>, AnyError>> + Send + use<> {
        let (guard, names) = (Arc::clone(&self.guard), Arc::clone(&self.names));
        async move {
            let found = match names.addresses(name.clone()).await {
                Ok(found) => found,
                Err(why) => return Err(Unresolved { name, why }.into()),
            };
            guard.addresses(&name, &found)?;
            Ok(found.to_vec())
        }
    }

    /// The address that a URL names, if it may be called.
    pub(super) fn literal(&self, url: &Url, address: IpAddr) -> Result<Vec<IpAddr>, Denied> {
        self.guard.url(url).map(|()| vec![address])
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let checked = self.checked(name.as_str().to_owned());
        Box::pin(async move {
            let found = checked.await?;
            // Port 0 is the port of the URL.
            let found: Vec<_> = found.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn resolver(lookup: Lookup) -> Resolver {
        Resolver::new(Arc::new(Guard::default()), lookup)
    }

    async fn asked(resolver: &Resolver, name: &str) -> Result<Vec<SocketAddr>, String> {
        let found = resolver.resolve(name.parse().unwrap()).await;
        found.map(Iterator::collect).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn who_asks_for_one_name_at_one_time_shares_one_look_up() {
        let asks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asks);
        let resolver = resolver(Arc::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok(vec![IpAddr::from([8, 8, 8, 8])])
            })
        }));
        let want = Ok(vec![SocketAddr::from(([8, 8, 8, 8], 0))]);
        // The one that began it gives up.
        let gone = tokio::time::timeout(Duration::from_millis(5), asked(&resolver, "a.example"));
        assert!(gone.await.is_err());
        let (one, two) = tokio::join!(asked(&resolver, "a.example"), asked(&resolver, "a.example"));
        assert_eq!((one, two), (want.clone(), want.clone()));
        assert_eq!(asks.load(Ordering::SeqCst), 1);
        assert_eq!(asked(&resolver, "a.example").await, want);
        assert_eq!(asks.load(Ordering::SeqCst), 2, "nothing is kept once it is answered");
    }

    #[tokio::test]
    async fn a_look_up_that_is_cut_off_does_not_stop_the_next_one() {
        let asks = Arc::new(AtomicUsize::new(0));
        let resolver = resolver(Arc::new(move |_| {
            assert!(asks.fetch_add(1, Ordering::SeqCst) > 0, "the first one panics");
            Box::pin(async { Ok(vec![]) })
        }));
        assert!(asked(&resolver, "a.example").await.unwrap_err().contains("cut off"));
        assert!(asked(&resolver, "a.example").await.unwrap_err().contains("no address"));
    }

    #[tokio::test]
    async fn no_more_look_ups_than_there_are_threads_for_are_under_way() {
        let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (now, peak) = (Arc::clone(&open), Arc::clone(&most));
        let resolver = Arc::new(resolver(Arc::new(move |_| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            Box::pin(async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(vec![IpAddr::from([8, 8, 8, 8])])
            })
        })));
        let mut all = tokio::task::JoinSet::new();
        for n in 0..3 * LOOKUPS {
            let resolver = Arc::clone(&resolver);
            all.spawn(async move { asked(&resolver, &format!("{n}.example")).await });
        }
        assert!(all.join_all().await.iter().all(Result::is_ok));
        assert_eq!(most.load(Ordering::SeqCst), LOOKUPS);
    }
}
