//! `waterclock index`: looks at the index of an instance that does not run, compares it with the changelog, creates it again.

mod rebuild;
mod verify;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Exit, Failure, Global, Outcome, exit, output, table};
use crate::app::instance::{DIRECTORIES, Instance};
use crate::app::lanes;
use crate::config::{Config, Overrides};
use crate::engine::Lane;
use crate::kafka::topic_reader::ReadError;
use crate::kafka::topics;
use crate::kafka::{Connection, LogError};
use crate::timers::Indexing;
use crate::timers::index::{self, Identity, Index, IndexCounts, Position};

/// Where the index is, below the data directory.
const INDEX: &str = "index";

/// Arguments of `index`.
#[derive(Args)]
pub(super) struct IndexCommand {
    /// Directory of the instance whose index is meant [default: ./waterclock-data/0]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Shows what stands in the index; asks no broker; exit code 1 if it is broken
    Inspect,
    /// Compares every entry with the changelog; exit code 1 if anything differs
    Verify {
        /// Differences that are listed
        #[arg(long, default_value = "100")]
        limit: usize,
    },
    /// Sets the index aside and creates it again from the changelog
    Rebuild {
        /// Lanes that it is made for [default: those that it had, or else all]
        #[arg(long, value_name = "N", value_delimiter = ',')]
        lanes: Vec<u16>,
    },
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("there is no index in {}", .0.display())]
    None(PathBuf),
    #[error("the index in {} is of another cluster or namespace", .0.display())]
    Foreign(PathBuf),
    #[error("Kafka does not tell its cluster's id")]
    NoClusterId,
    #[error("there is no lane {lane}; the namespace has the lanes 0 to {}, and nothing was changed", lanes.saturating_sub(1))]
    NoLane { lane: u16, lanes: usize },
    #[error(
        "the index is broken: `waterclock index rebuild` creates it again, and so does an instance that starts"
    )]
    Broken(#[source] index::Error),
    #[error("could not use the index")]
    Index(#[from] index::Error),
    #[error("could not read the changelog")]
    Changelog(#[from] LogError),
}

fn failed(error: Error) -> Failure {
    let error = match error {
        Error::Index(broken @ index::Error::Broken { .. }) => Error::Broken(broken),
        error => error,
    };
    let exit = match &error {
        Error::None(_) | Error::Foreign(_) | Error::Broken(_) => Exit::Negative,
        Error::NoLane { .. } => Exit::Usage,
        Error::Index(index::Error::InUse(_) | index::Error::Refused { .. }) => Exit::InUse,
        Error::NoClusterId
        | Error::Changelog(LogError::Unreachable(_) | LogError::Read(ReadError::Silent { .. })) => {
            Exit::Unavailable
        }
        Error::Changelog(LogError::NoTopic { .. }) => Exit::Configuration,
        Error::Index(_) | Error::Changelog(_) => Exit::Internal,
    };
    Failure::new(exit, error)
}

impl IndexCommand {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let data_dir = self.data_dir;
        let config = global.load(Overrides { data_dir, ..Overrides::default() })?;
        let directory = config.data_dir.clone();
        let directory = directory.unwrap_or_else(|| Path::new(DIRECTORIES).join("0"));
        let place = directory.join(INDEX);
        if !place.is_dir() && !matches!(self.what, What::Rebuild { .. }) {
            return Err(failed(Error::None(directory)));
        }
        // As `run` takes it: neither runs while the other does.
        let fresh = uuid::Uuid::new_v4().simple().to_string();
        let held = Instance::claim(Some(&directory), None, &fresh[..12]);
        let _held = held.map_err(|error| Failure::new(exit::of_instance(&error), error))?;
        match self.what {
            What::Inspect => inspect(&place, global.json()),
            What::Verify { limit } => {
                let connection = global.connection(&config);
                let identity = identity(&connection, &config)?;
                verify::run(&connection, &config, &identity, &place, limit, global.json())
            }
            What::Rebuild { lanes } => {
                let connection = global.connection(&config);
                let identity = identity(&connection, &config)?;
                let lanes: Vec<Lane> = lanes.into_iter().map(Lane).collect();
                rebuild::run(&connection, &config, &identity, &place, lanes, global.json())
            }
        }
    }
}

/// Whose index it must be.
fn identity(connection: &Connection, config: &Config) -> Result<Identity, Failure> {
    let in_force = topics::check(connection, &lanes::request(config)).map_err(|error| {
        let exit = if error.is_away() { Exit::Unavailable } else { Exit::Configuration };
        Failure::new(exit, error)
    })?;
    let identity = Indexing::identity(&config.namespace, &in_force);
    identity.ok_or_else(|| failed(Error::NoClusterId))
}

/// What `inspect` says of a lane.
struct Row {
    lane: Lane,
    found: Result<Option<(Position, IndexCounts)>, String>,
}

impl Row {
    fn of(index: &mut Index, lane: Lane) -> Result<Self, index::Error> {
        let found = match index.load(lane, |_| ()) {
            Ok(None) => Ok(None),
            Ok(Some(position)) => Ok(Some((position, index.reader().counts_of(lane)?))),
            Err(index::Error::Broken { detail, .. }) => Err(detail),
            Err(other) => return Err(other),
        };
        // One lane after the other takes memory.
        index.release(lane);
        Ok(Self { lane, found })
    }

    fn cells(&self) -> Vec<String> {
        let lane = self.lane.0.to_string();
        let cells = match &self.found {
            Ok(None) => return vec![lane, "empty".to_owned()],
            Err(detail) => return vec![lane, format!("broken: {detail}")],
            Ok(Some((position, figures))) => {
                let IndexCounts { live, ended, cancel_marks, .. } = figures;
                let numbers = [position.next.0.to_string(), output::time(position.at)];
                let counts = [live, ended, cancel_marks].map(u64::to_string);
                numbers.into_iter().chain(counts)
            }
        };
        [lane, "whole".to_owned()].into_iter().chain(cells).collect()
    }

    fn as_json(&self) -> Value {
        let lane = self.lane.0;
        match &self.found {
            Ok(None) => json!({ "lane": lane, "state": "empty" }),
            Err(detail) => json!({ "lane": lane, "state": "broken", "detail": detail }),
            Ok(Some((position, IndexCounts { live, ended, cancel_marks, .. }))) => json!({
                "lane": lane,
                "state": "whole",
                "next": position.next.0,
                "at": position.at.0,
                "pending": live,
                "ended": ended,
                "void": cancel_marks,
            }),
        }
    }
}

fn inspect(place: &Path, json: bool) -> Outcome {
    let read = || -> Result<_, Error> {
        let index = Index::look(place)?;
        let mut index = index.ok_or_else(|| Error::None(place.to_owned()))?;
        let rows = index.lanes()?.into_iter().map(|lane| Row::of(&mut index, lane));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let (disk_bytes, aside) = (index.disk_bytes()?, index.aside()?);
        let identity = index.identity().clone();
        index.close();
        Ok((identity, rows, disk_bytes, aside))
    };
    let (Identity { cluster_id, namespace, .. }, rows, disk_bytes, aside) =
        read().map_err(failed)?;
    // What follows is a mark that is of use to nobody.
    let namespace = namespace.split(' ').next().unwrap_or_default();
    let exit = if rows.iter().any(|row| row.found.is_err()) { Exit::Negative } else { Exit::Ok };
    if json {
        let told = json!({
            "directory": place.display().to_string(),
            "cluster": cluster_id,
            "namespace": namespace,
            "disk_bytes": disk_bytes,
            "aside": aside,
            "lanes": rows.iter().map(Row::as_json).collect::<Vec<_>>(),
        });
        output::line(&told.to_string())?;
        return Ok(exit);
    }
    let mut table = table::plain();
    table.set_header(["lane", "state", "next offset", "as of", "pending", "ended", "void"]);
    table.add_rows(rows.iter().map(Row::cells));
    output::line(&format!(
        "{}: namespace {namespace} of cluster {cluster_id}, {disk_bytes} bytes, {aside} set aside\n{}",
        place.display(),
        table.trim_fmt()
    ))?;
    Ok(exit)
}
