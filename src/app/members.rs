//! The members of the namespace, for the API and for commands: what each has announced, and how it is.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::health::Health;
use super::tasks::failure;
use super::timers::TimersOfInstance;
use crate::api::members::{MemberHealth, MemberLoad, MemberRole, MemberView, Members};
use crate::api::tasks::Failure;
use crate::api::timers::Peers;
use crate::api::timers::model::{PeerAddress, Soon};
use crate::api::{Report, Status as _};
use crate::kafka::{Load, Member};

/// A member as programs see it. `report`: what it said when it was asked whether it is ready; `None`: nothing.
#[must_use]
pub fn view(member: &Member, report: Option<Report>) -> MemberView {
    let (health, reasons) = MemberHealth::of(report);
    let load = |Load { pending, timers, open_calls, per_second }| MemberLoad {
        pending,
        timers,
        open_calls,
        per_second,
    };
    MemberView {
        instance: member.instance.clone(),
        address: member.address.clone(),
        roles: roles(member),
        lanes: member.lanes.iter().map(|lane| lane.0).collect(),
        threads: member.threads,
        version: member.program.clone(),
        since: member.since.map(|at| at.0),
        load: member.load.map(load),
        health,
        reasons,
    }
}

/// What a member does.
fn roles(member: &Member) -> Vec<MemberRole> {
    // A program from before lane threads were said has lanes, or waits for some.
    let has_lanes = member.threads > 0 || !member.lanes.is_empty();
    let roles = [
        (MemberRole::Lanes, has_lanes),
        (MemberRole::Worker, member.worker),
        (MemberRole::Api, member.api),
    ];
    roles.into_iter().filter_map(|(role, has)| has.then_some(role)).collect()
}

/// What this instance has heard of the members, which it asks how they are.
pub(super) struct MembersOfInstance {
    timers: Arc<TimersOfInstance>,
    health: Arc<Health>,
    peers: Peers,
}

impl MembersOfInstance {
    pub(super) fn new(timers: &Arc<TimersOfInstance>, health: &Arc<Health>, peers: Peers) -> Self {
        Self { timers: Arc::clone(timers), health: Arc::clone(health), peers }
    }

    async fn asked(&self) -> Result<Vec<MemberView>, Failure> {
        let (me, listed) = self.timers.listed().map_err(failure)?;
        let mut asking = JoinSet::new();
        for member in listed {
            let (peers, is_me) = (self.peers.clone(), member.instance == me);
            let own = is_me.then(|| self.health.ready());
            asking.spawn(async move {
                let report = match own {
                    Some(own) => Some(own),
                    None => {
                        let (address, tls) = (member.address.clone(), member.tls);
                        peers.ready(&PeerAddress { address, tls }).await
                    }
                };
                view(&member, report)
            });
        }
        let mut views = asking.join_all().await;
        views.sort_by(|a, b| a.instance.cmp(&b.instance));
        Ok(views)
    }
}

impl Members for MembersOfInstance {
    fn members(&self) -> Soon<'_, Result<Vec<MemberView>, Failure>> {
        Box::pin(self.asked())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Lane, UnixMillis};

    #[test]
    fn a_member_is_shown_as_it_announced_itself_and_with_the_roles_that_it_has() {
        let member = |threads, lanes: &[u16], worker, api| Member {
            instance: "a".to_owned(),
            incarnation: String::new(),
            address: "a:80".to_owned(),
            tls: false,
            lanes: lanes.iter().copied().map(Lane).collect(),
            threads,
            allow: None,
            max_delay: None,
            tasks: true,
            worker,
            api,
            program: Some("1.2.3".to_owned()),
            since: Some(UnixMillis(7)),
            load: Some(Load { pending: 1, timers: 2, open_calls: 3, per_second: 4 }),
        };
        use MemberRole::{Api, Lanes, Worker};
        for (why, member, want) in [
            ("all of them", member(1, &[0], true, true), &[Lanes, Worker, Api][..]),
            ("no lane yet", member(1, &[], false, false), &[Lanes]),
            ("threads were not said", member(0, &[0], false, true), &[Lanes, Api]),
            ("no lanes", member(0, &[], true, false), &[Worker]),
            ("a worker without tasks", member(0, &[], false, false), &[]),
        ] {
            let shown = view(&member, None);
            assert_eq!(shown.roles, want, "{why}");
            assert_eq!((shown.health, shown.since), (MemberHealth::Silent, Some(7)), "{why}");
            assert_eq!(shown.version.as_deref(), Some("1.2.3"), "{why}");
            let load = MemberLoad { pending: 1, timers: 2, open_calls: 3, per_second: 4 };
            assert_eq!(shown.load, Some(load), "{why}");
        }
    }
}
