//! Checks now and then whether the topics can still hold their records, and stops admitting when they cannot.
//!
//! At the start misconfigured topics are refused (`topics::check`). This is for later changes: somebody sets a retention; a
//! topic is deleted, or deleted and created again; fewer replicas have to acknowledge.
//!
//! # Invariants
//! 1. While a topic of ours is misconfigured, nothing new is read from the intakes; records in the tiers move on. Records with
//!    an id wait, too: a cancel for them may stand in the part that is not read.
//! 2. Every misconfigured topic is logged with the remedy, again every few minutes, and is a metric with an alarm.
//! 3. So is a topic that is only weak, where the loss of one broker loses records. A start refuses it, unless the operator
//!    said that it is meant. Later it stops nothing: nothing is being lost yet, and stopping would protect only new records.
//! 4. A question that is not answered changes nothing. A missing topic is believed when it was missing twice: a broker
//!    that has just started may not know all of them yet.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::client::Connection;
use crate::client::raw::ask;
use crate::client::resilient_admin::ResilientAdmin;
use crate::topics::{self, Finding, Severity, TopicSpec};
use waterclock_telemetry as telemetry;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(20);
/// The same while something is wrong, so that what was mended counts soon.
const EVERY_MISCONFIGURED: Duration = Duration::from_secs(5);
/// A problem that persists is reported again after this long.
const SAY_AGAIN: Duration = Duration::from_secs(300);
/// Longest wait for the ids.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What the watcher has seen last.
#[derive(Debug, Default)]
pub(crate) struct TopicHealth {
    misconfigured: Mutex<Vec<String>>,
    weak: Mutex<Vec<String>>,
    held: AtomicBool,
    recreated: AtomicU64,
}

impl TopicHealth {
    /// Whether nothing new may be read from the intakes.
    pub(crate) fn holds(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// How often topics were seen to have been created again: their positions are void.
    pub(crate) fn recreated(&self) -> u64 {
        self.recreated.load(Ordering::Relaxed)
    }

    /// What is misconfigured, for people.
    pub(crate) fn misconfigured(&self) -> Vec<String> {
        self.misconfigured.lock().clone()
    }

    /// What the loss of one broker would lose, for people.
    pub(crate) fn weak(&self) -> Vec<String> {
        self.weak.lock().clone()
    }

    fn tell(&self, findings: &[Finding]) {
        let texts = |of: &[&Finding]| of.iter().map(ToString::to_string).collect();
        let (misconfigured, weak): (Vec<&Finding>, Vec<&Finding>) =
            findings.iter().partition(|finding| finding.refuses());
        *self.misconfigured.lock() = texts(&misconfigured);
        *self.weak.lock() = texts(&weak);
        self.held.store(!misconfigured.is_empty(), Ordering::Relaxed);
        telemetry::topics_unfit(misconfigured.len());
        telemetry::topics_weak(weak.len());
    }
}

/// The topics as they must be.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Their names.
    pub names: topics::Names,
    /// Every topic that there should be.
    pub specs: Vec<TopicSpec>,
}

/// Whether somebody has to hear of it while it runs: what could only be better was said at the start.
fn is_told(finding: &Finding) -> bool {
    finding.severity != Severity::Note
}

/// Looks, on the thread of [`Upkeep`](super::upkeep::Upkeep).
pub(crate) struct Look {
    connection: Connection,
    admin: ResilientAdmin,
    wanted: Wanted,
    seen: Arc<TopicHealth>,
    /// Topics that were not there at the last look.
    missing: BTreeSet<String>,
    /// By topic.
    ids: BTreeMap<String, String>,
    /// What was said, and when.
    said: BTreeMap<String, Instant>,
    due: Instant,
}

impl Look {
    pub(crate) fn new(
        connection: &Connection,
        admin: ResilientAdmin,
        wanted: Wanted,
        seen: Arc<TopicHealth>,
    ) -> Self {
        Self {
            connection: connection.clone(),
            admin,
            wanted,
            seen,
            missing: BTreeSet::new(),
            ids: BTreeMap::new(),
            said: BTreeMap::new(),
            due: Instant::now(),
        }
    }

    /// When it is to be called.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn tick(&mut self) {
        self.look();
        self.look_at_ids();
        // Again soon where that did not succeed: a topic that is created again before its id is known goes unnoticed.
        let is_known = self.ids.len() == self.wanted.specs.len();
        let is_well = is_known && !self.seen.holds() && self.missing.is_empty();
        self.due = Instant::now() + if is_well { EVERY } else { EVERY_MISCONFIGURED };
    }

    fn look(&mut self) {
        let Wanted { names, specs } = &self.wanted;
        let connection = &self.connection;
        let found = match self.admin.ask(|admin| topics::inspect_with(admin, connection, names)) {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "could not check the topics; the last result stays"
                );
                return;
            }
        };
        let mut findings = topics::diff(names, specs, &found);
        findings.retain(is_told);
        for finding in &mut findings {
            finding.remedy = self.pasted(&finding.remedy);
        }
        let is_missing = |finding: &Finding| finding.severity == Severity::Missing;
        let missing: BTreeSet<String> =
            findings.iter().filter(|f| is_missing(f)).map(|f| f.topic.clone()).collect();
        findings.retain(|finding| !is_missing(finding) || self.missing.contains(&finding.topic));
        self.missing = missing;
        self.say(&findings);
        self.seen.tell(&findings);
    }

    /// Commands of waterclock in this text, for a shell that knows nothing of this process.
    fn pasted(&self, remedy: &str) -> String {
        let (brokers, namespace) = (&self.connection.brokers, self.wanted.names.namespace());
        let command = format!("`waterclock --brokers {brokers} --namespace {namespace} ");
        remedy.replace("`waterclock ", &command)
    }

    fn say(&mut self, findings: &[Finding]) {
        self.said.retain(|said, _| findings.iter().any(|finding| finding.to_string() == *said));
        if !findings.iter().any(Finding::refuses) && self.seen.holds() {
            tracing::info!("the topics are in order again, records are admitted");
        }
        for finding in findings {
            let said = self.said.entry(finding.to_string());
            let is_due = match &said {
                std::collections::btree_map::Entry::Vacant(_) => true,
                std::collections::btree_map::Entry::Occupied(at) => at.get().elapsed() > SAY_AGAIN,
            };
            if is_due {
                said.insert_entry(Instant::now());
                let Finding { topic, what, found, wanted, remedy, .. } = finding;
                let message = if finding.refuses() {
                    "a topic may lose what it holds: nothing new is admitted until it is mended"
                } else {
                    "a topic loses what it holds with one broker: records are admitted still"
                };
                tracing::error!(
                    topic, what = %what, found = %found, wanted = %wanted, remedy = %remedy, "{message}"
                );
            }
        }
    }

    /// Compares the ids with those of the last look.
    fn look_at_ids(&mut self) {
        let names: Vec<String> = self.wanted.specs.iter().map(|spec| spec.name.clone()).collect();
        let told = match self.admin.ask(|admin| ask::ids(admin, &names, ANSWER_MAX)) {
            Ok(told) => told,
            Err(error) => return tracing::debug!(%error, "the ids of the topics are not known"),
        };
        for (topic, id) in told {
            let Ok(id) = id else { continue };
            match self.ids.insert(topic.clone(), id.clone()) {
                Some(before) if before != id => {
                    tracing::error!(
                        topic,
                        before,
                        id,
                        "a topic was deleted and created again: what stood in it is gone. Find out who did it; positions in it \
                         start again"
                    );
                    telemetry::topic_remade();
                    self.seen.recreated.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity) -> Finding {
        Finding {
            topic: "ns.delay.1m".to_owned(),
            what: "a setting".to_owned(),
            found: "1".to_owned(),
            wanted: "2".to_owned(),
            severity,
            remedy: "set it".to_owned(),
        }
    }

    #[test]
    fn what_loses_records_holds_the_intakes_and_what_is_weak_is_only_told() {
        use Severity::{Missing, Note, Weak, Wrong};
        #[rustfmt::skip]
        let table: [(&str, &[Severity], bool, usize, usize); 6] = [
            // why,                                   findings,            held,  misconfigured, weak
            ("all is well",                           &[],                 false, 0,     0),
            ("it could be better: said at the start", &[Note],             false, 0,     0),
            ("fewer replicas have to acknowledge",    &[Weak, Note],       false, 0,     1),
            ("a retention",                           &[Wrong],            true,  1,     0),
            ("both",                                  &[Wrong, Weak],      true,  1,     1),
            ("it is mended, a topic is gone",         &[Missing],          true,  1,     0),
        ];
        let seen = TopicHealth::default();
        for (why, severities, held, misconfigured, weak) in table {
            let findings: Vec<Finding> =
                severities.iter().copied().map(finding).filter(is_told).collect();
            seen.tell(&findings);
            let is = (seen.holds(), seen.misconfigured().len(), seen.weak().len());
            assert_eq!(is, (held, misconfigured, weak), "{why}");
        }
    }
}
