//! The name of this process: made up at its first start, kept in its data directory, locked while it runs.
//!
//! A restart finds its name again, so that its own producer is fenced by its own transactional id at once, instead of
//! after the transaction's timeout. Two processes on one directory: the second is refused.
//!
//! Beside the name stands the home: what tells this directory from all others. Whoever has the lock knows that the last
//! one that had this home is dead, and may take its place in the group (docs/adr/0015).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// Directories of one machine that are tried when none was asked for.
const DIRECTORIES_MAX: usize = 64;
/// Where they are, below the working directory.
pub const DIRECTORIES: &str = "waterclock-data";
/// Keeps the name, and is what is locked.
const FILE: &str = "instance";

/// Why there is no name.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process runs there; give this one a directory of its own.
    #[error("data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// All directories that are tried are in use; give this one a directory of its own.
    #[error("all of {DIRECTORIES}/0 to {DIRECTORIES}/{} are in use; choose a --data-dir", DIRECTORIES_MAX - 1)]
    AllInUse,
    /// The directory cannot be used.
    #[error("could not {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// What stands in the file is no name.
    #[error("{} holds no instance name: {found:?}; a name is 1 to 64 of a-z A-Z 0-9 . _ -", path.display())]
    BadName {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
}

/// A name, and the right to it on this machine for as long as this lives.
#[derive(Debug)]
pub struct Instance {
    /// The name.
    pub name: String,
    /// Tells the data directory from those of other processes that were given the same name.
    pub home: String,
    /// The data directory.
    pub directory: PathBuf,
    _lock: File,
}

impl Instance {
    /// Takes a data directory: the one asked for, or the first of this working directory that no other process holds.
    ///
    /// `name`: the one asked for, else the one kept there, else `fresh`, which is kept from then on and is the home of a
    /// directory that has none.
    ///
    /// # Errors
    /// See [`Error`]; nothing has been started.
    pub fn claim(directory: Option<&Path>, name: Option<&str>, fresh: &str) -> Result<Self, Error> {
        if let Some(directory) = directory {
            return Self::of(directory, name, fresh);
        }
        for number in 0..DIRECTORIES_MAX {
            let directory = Path::new(DIRECTORIES).join(number.to_string());
            match Self::of(&directory, name, fresh) {
                Err(Error::InUse(_)) => {}
                claimed => return claimed,
            }
        }
        Err(Error::AllInUse)
    }

    fn of(directory: &Path, name: Option<&str>, fresh: &str) -> Result<Self, Error> {
        let failed = |what| {
            let path = directory.to_owned();
            move |source| Error::Io { what, path, source }
        };
        std::fs::create_dir_all(directory).map_err(failed("make"))?;
        let path = directory.join(FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("open the instance file of"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse(directory.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        let mut found = String::new();
        file.read_to_string(&mut found).map_err(failed("read the instance file of"))?;
        let found = found.trim();
        let (kept, home) = found.split_once('\n').unwrap_or((found, ""));
        let or_fresh = |kept: &str| if kept.is_empty() { fresh } else { kept }.to_owned();
        let (name, home) = (name.map_or_else(|| or_fresh(kept), str::to_owned), or_fresh(home));
        for word in [&name, &home] {
            if !is_good(word) {
                return Err(Error::BadName { path, found: word.clone() });
            }
        }
        let text = format!("{name}\n{home}\n");
        if text != found {
            file.rewind().map_err(failed("write the instance file of"))?;
            file.set_len(0).map_err(failed("write the instance file of"))?;
            file.write_all(text.as_bytes()).map_err(failed("write the instance file of"))?;
            file.sync_all().map_err(failed("write the instance file of"))?;
        }
        Ok(Self { name, home, directory: directory.to_owned(), _lock: file })
    }
}

fn is_good(word: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !word.is_empty() && word.len() <= 64 && word.chars().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_and_a_directory_has_one_owner() {
        let base = tempfile::tempdir().expect("a directory");
        let directory = base.path().join("0");
        let first = Instance::claim(Some(&directory), None, "amber-1").expect("free");
        assert_eq!((&*first.name, &*first.home), ("amber-1", "amber-1"));
        let second = Instance::claim(Some(&directory), None, "amber-2");
        assert!(matches!(second, Err(Error::InUse(_))), "{second:?}");
        drop(first);
        let again = Instance::claim(Some(&directory), None, "amber-3").expect("free again");
        assert_eq!((&*again.name, &*again.home), ("amber-1", "amber-1"));
        drop(again);
        let asked = Instance::claim(Some(&directory), Some("blue"), "amber-4").expect("free again");
        assert_eq!((&*asked.name, &*asked.home), ("blue", "amber-1"));
    }

    #[test]
    fn a_directory_of_an_older_version_keeps_its_name_and_gets_a_home() {
        let base = tempfile::tempdir().expect("a directory");
        std::fs::write(base.path().join(FILE), "amber-1\n").expect("written");
        let first = Instance::claim(Some(base.path()), None, "fresh").expect("free");
        assert_eq!((&*first.name, &*first.home), ("amber-1", "fresh"));
        drop(first);
        let again = Instance::claim(Some(base.path()), None, "another").expect("free again");
        assert_eq!((&*again.name, &*again.home), ("amber-1", "fresh"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let base = tempfile::tempdir().expect("a directory");
        std::fs::write(base.path().join(FILE), "not a/name\n").expect("written");
        let refused = Instance::claim(Some(base.path()), None, "amber");
        assert!(matches!(refused, Err(Error::BadName { .. })), "{refused:?}");
    }
}
