//! What a run is told: a seed, and what of the plan that it stands for is to be another one.
//!
//! They are printed when a run fails, and taken back as they were printed.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::mutation::Mutation;
use crate::plan::{Delivery, Kind};

/// By seed: crashes with transactions are where most can go wrong. Two of twenty have hostile producers.
const MODES: [(Kind, Delivery); 20] = {
    use Delivery::{AtLeastOnce, ExactlyOnce};
    [
        (Kind::Healthy, ExactlyOnce),
        (Kind::Healthy, AtLeastOnce),
        (Kind::Hostile, AtLeastOnce),
        (Kind::Hostile, ExactlyOnce),
        (Kind::Faulty, ExactlyOnce),
        (Kind::Storm, ExactlyOnce),
        (Kind::Strict, ExactlyOnce),
        (Kind::Away, AtLeastOnce),
        (Kind::Faulty, ExactlyOnce),
        (Kind::Away, ExactlyOnce),
        (Kind::Retention, ExactlyOnce),
        (Kind::Clocks, ExactlyOnce),
        (Kind::Faulty, AtLeastOnce),
        (Kind::Strict, ExactlyOnce),
        (Kind::Faulty, ExactlyOnce),
        (Kind::Poison, ExactlyOnce),
        (Kind::Storm, AtLeastOnce),
        (Kind::Clocks, AtLeastOnce),
        (Kind::Strict, ExactlyOnce),
        (Kind::Retention, AtLeastOnce),
    ]
};

/// What names one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub seed: u64,
    /// Another kind than the seed's own.
    pub kind: Option<Kind>,
    pub delivery: Option<Delivery>,
    /// Another order of events, with the same plan and workload.
    pub luck: u64,
    /// The faults of the plan that happen; `None`: all.
    pub faults: Option<BTreeSet<usize>>,
    /// The submissions that are made; `None`: all.
    pub submissions: Option<BTreeSet<usize>>,
    /// What goes wrong by itself; `None`: all.
    pub chances: Option<BTreeSet<String>>,
    /// What waterclock does wrong.
    pub mutation: Option<Mutation>,
}

impl Options {
    pub fn seed(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    pub fn new(seed: u64, kind: Kind, delivery: Delivery) -> Self {
        Self { seed, kind: Some(kind), delivery: Some(delivery), ..Self::default() }
    }

    pub fn mode(&self) -> (Kind, Delivery) {
        let (kind, delivery) = MODES[(self.seed % MODES.len() as u64) as usize];
        match self.kind.unwrap_or(kind) {
            // There are none in `at_least_once`.
            Kind::Tasks => (Kind::Tasks, Delivery::ExactlyOnce),
            kind => (kind, self.delivery.unwrap_or(delivery)),
        }
    }
}

/// As it is taken back.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, delivery) = self.mode();
        write!(f, "--seed {} --kind {kind:?} --delivery {delivery:?}", self.seed)?;
        if self.luck > 0 {
            write!(f, " --luck {}", self.luck)?;
        }
        if let Some(mutation) = self.mutation {
            write!(f, " --mutation {mutation:?}")?;
        }
        for (name, of) in [("faults", &self.faults), ("submissions", &self.submissions)] {
            if let Some(of) = of {
                write!(f, " --{name} {}", list(of))?;
            }
        }
        match &self.chances {
            Some(of) => write!(f, " --chances {}", list(of)),
            None => Ok(()),
        }
    }
}

fn list<T: fmt::Display>(of: &BTreeSet<T>) -> String {
    match of.is_empty() {
        true => "none".to_owned(),
        false => of.iter().map(T::to_string).collect::<Vec<_>>().join(","),
    }
}

fn parse_list<T: FromStr + Ord>(text: &str) -> Result<BTreeSet<T>, String> {
    if text == "none" {
        return Ok(BTreeSet::new());
    }
    text.split(',').map(|one| one.parse().map_err(|_| format!("what is {one:?}?"))).collect()
}

fn named<T: fmt::Debug + Copy>(text: &str, all: &[T]) -> Result<T, String> {
    let of = all.iter().find(|one| format!("{one:?}").eq_ignore_ascii_case(text));
    of.copied().ok_or_else(|| format!("{text:?} is none of {all:?}"))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

/// What a command line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// A single run.
    pub one: Option<Options>,
    /// How many seeds, and the first of them.
    pub seeds: Option<u64>,
    pub first_seed: Option<u64>,
    /// For every seed.
    pub kind: Option<Kind>,
    pub delivery: Option<Delivery>,
    /// How many of the last events a failure tells.
    pub history: Option<usize>,
    /// Do not shrink what fails.
    pub whole: bool,
}

impl FromStr for Command {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut command, mut one, mut single) = (Self::default(), Options::default(), false);
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            if word == "--whole" {
                command.whole = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
            match word {
                "--seed" => (one.seed, single) = (number(value)?, true),
                "--seeds" => command.seeds = Some(number(value)?),
                "--first-seed" => command.first_seed = Some(number(value)?),
                "--history" => command.history = Some(number(value)? as usize),
                "--luck" => one.luck = number(value)?,
                "--kind" => one.kind = Some(named(value, &Kind::ALL)?),
                "--delivery" => {
                    let all = [Delivery::ExactlyOnce, Delivery::AtLeastOnce];
                    one.delivery = Some(named(value, &all)?);
                }
                "--mutation" => one.mutation = Some(named(value, &Mutation::all())?),
                "--faults" => one.faults = Some(parse_list(value)?),
                "--submissions" => one.submissions = Some(parse_list(value)?),
                "--chances" => one.chances = Some(parse_list(value)?),
                _ => return Err(format!("{word} is not known")),
            }
        }
        if (one.kind, one.delivery) == (Some(Kind::Tasks), Some(Delivery::AtLeastOnce)) {
            return Err("there are no tasks in at_least_once".to_owned());
        }
        (command.kind, command.delivery) = (one.kind, one.delivery);
        command.one = single.then_some(one);
        Ok(command)
    }
}

#[test]
fn options_are_taken_back_as_they_are_printed() {
    let whole = Options {
        luck: 3,
        faults: Some(BTreeSet::new()),
        submissions: Some([1, 7].into()),
        chances: Some(["step-faults".to_owned()].into()),
        mutation: Some(Mutation::Hasty(1)),
        ..Options::new(12, Kind::Away, Delivery::AtLeastOnce)
    };
    for options in [whole, Options::new(5, Kind::Storm, Delivery::ExactlyOnce)] {
        let command: Result<Command, String> = options.to_string().parse();
        assert_eq!(command.map(|command| command.one), Ok(Some(options)));
    }
    let of_tasks = Options { kind: Some(Kind::Tasks), ..Options::seed(7) };
    assert_eq!(of_tasks.to_string(), "--seed 7 --kind Tasks --delivery ExactlyOnce");
    assert!("--seeds many".parse::<Command>().is_err());
    assert!("--kind Sunny".parse::<Command>().is_err());
    assert!("--kind Tasks --delivery AtLeastOnce".parse::<Command>().is_err());
}
