//! `<ns>.meta`: what is in force for a namespace, and what its members say of themselves.

mod durable;
mod exclusive;
mod follow;
mod live;
mod log;
mod members;
mod registrar;
mod registry;
mod roster;
mod writer;

pub use follow::Follower;
pub use log::{
    CHECKPOINT_PARTITION, CLOCK, Error, LadderInForce, MEMBER, Meta, PARTITION, Secret, Value,
    read, write,
};
pub use members::Members;
pub use registrar::{PutError, Registrar};
pub use registry::RegistryFeed;
pub use roster::{Load, Member, Roster, SharedRoster};
pub use writer::MetaWriter;
pub(crate) use writer::Written;
