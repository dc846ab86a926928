//! The name of this process: made up at its first start, kept in its data directory, locked while it runs.
//!
//! A restart finds its name again. So its own transactional id fences its old producer at once, instead of after the
//! transaction's timeout. Of two processes on one directory, the second is refused.
//!
//! Beside the name stands the directory id, a random word that tells this directory from all others. A process that holds the lock knows
//! that the last process that used this directory is dead, and may take its place in the group (docs/adr/0015).
//!
//! A crash of the machine, or a hand, can leave a file that holds neither. Such a file is created again, and set aside
//! unless it is empty. The cost: the process waits for its earlier place in the group and for its earlier open
//! transaction to end.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Directories of one machine that are tried when none was asked for.
const DIRECTORIES_MAX: usize = 64;
/// Where they are, below the working directory.
pub const DIRECTORIES: &str = "waterclock-data";
/// Keeps the name, and is what is locked.
const FILE: &str = "instance";
/// What is written before it takes the place of the file.
const FRESH: &str = "instance.new";
/// A file that could not be read is kept under this name.
const DAMAGED: &str = "instance.damaged";
/// Two short words.
const FILE_BYTES_MAX: u64 = 4_096;

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
    /// What was asked for is no name.
    #[error("{0:?} is no instance name; a name is 1 to 64 of a-z A-Z 0-9 . _ -")]
    BadName(String),
}

/// A name, and the right to it on this machine for as long as this lives.
#[derive(Debug)]
pub struct Instance {
    /// The name.
    pub name: String,
    /// Tells the data directory from those of other processes that were given the same name.
    pub directory_id: String,
    /// The data directory.
    pub directory: PathBuf,
    /// Those of the file as it was found, and as it is.
    _locks: Vec<File>,
}

impl Instance {
    /// Takes a data directory: the one asked for, or the first of this working directory that no other process holds.
    ///
    /// `name`: the one asked for, else the one kept there, else `fresh`, which is kept from then on and is the id of a
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
        let was_there = path.exists();
        let file = lock(directory, &path)?;
        let mut found = Vec::new();
        let read = (&file).take(FILE_BYTES_MAX).read_to_end(&mut found);
        read.map_err(failed("read the instance file of"))?;
        let (kept, directory_id) = match words(&found) {
            Some(words) => {
                if was_there && found.is_empty() {
                    tracing::warn!(
                        file = %path.display(),
                        "the instance file is empty: using a new name. Lanes of the previous run are free after the \
                         session and transaction timeouts"
                    );
                }
                words
            }
            None => {
                let aside = directory.join(DAMAGED);
                let copied = std::fs::write(&aside, &found);
                copied.map_err(failed("set the damaged instance file aside in"))?;
                tracing::warn!(
                    file = %path.display(), aside = %aside.display(),
                    "the instance file is damaged: using a new name. Lanes of the previous run are free after the session \
                     and transaction timeouts"
                );
                ("", "")
            }
        };
        let or_fresh = |kept: &str| if kept.is_empty() { fresh } else { kept }.to_owned();
        let (name, directory_id) =
            (name.map_or_else(|| or_fresh(kept), str::to_owned), or_fresh(directory_id));
        if !is_good(&name) {
            return Err(Error::BadName(name));
        }
        let text = format!("{name}\n{directory_id}\n");
        let mut locks = vec![file];
        if text.as_bytes() != found {
            let fresh = directory.join(FRESH);
            let written = File::create(&fresh).and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                // Before anybody can find it.
                file.try_lock()?;
                std::fs::rename(&fresh, &path)?;
                File::open(directory)?.sync_all()?;
                Ok(file)
            });
            locks.push(written.map_err(failed("write the instance file of"))?);
        }
        Ok(Self { name, directory_id, directory: directory.to_owned(), _locks: locks })
    }
}

/// Opens the file and locks it; one that another has put there meanwhile is opened instead.
fn lock(directory: &Path, path: &Path) -> Result<File, Error> {
    let failed = |what| {
        let path = directory.to_owned();
        move |source| Error::Io { what, path, source }
    };
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(failed("open the instance file of"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse(directory.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        let own = file.metadata().map_err(failed("look at the instance file of"))?;
        let there = std::fs::metadata(path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())) {
            return Ok(file);
        }
    }
}

/// The name and the directory id, each empty where there is none yet; `None`: the file is damaged.
fn words(found: &[u8]) -> Option<(&str, &str)> {
    let text = str::from_utf8(found).ok()?.trim();
    let (name, directory_id) = text.split_once('\n').unwrap_or((text, ""));
    [name, directory_id]
        .iter()
        .all(|word| word.is_empty() || is_good(word))
        .then_some((name, directory_id))
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
        assert_eq!((&*first.name, &*first.directory_id), ("amber-1", "amber-1"));
        let second = Instance::claim(Some(&directory), None, "amber-2");
        assert!(matches!(second, Err(Error::InUse(_))), "{second:?}");
        drop(first);
        let again = Instance::claim(Some(&directory), None, "amber-3").expect("free again");
        assert_eq!((&*again.name, &*again.directory_id), ("amber-1", "amber-1"));
        drop(again);
        let asked = Instance::claim(Some(&directory), Some("blue"), "amber-4").expect("free again");
        assert_eq!((&*asked.name, &*asked.directory_id), ("blue", "amber-1"));
    }

    #[test]
    fn a_directory_of_an_older_version_keeps_its_name_and_gets_a_home() {
        let base = tempfile::tempdir().expect("a directory");
        std::fs::write(base.path().join(FILE), "amber-1\n").expect("written");
        let first = Instance::claim(Some(base.path()), None, "fresh").expect("free");
        assert_eq!((&*first.name, &*first.directory_id), ("amber-1", "fresh"));
        drop(first);
        let again = Instance::claim(Some(base.path()), None, "another").expect("free again");
        assert_eq!((&*again.name, &*again.directory_id), ("amber-1", "fresh"));
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_a_name_is_made() {
        for damaged in [&b"not a/name\n"[..], b"amber-1\n\xff\xfe\n", b"\0\0\0\0\0\0", b"a\nb\nc\n"]
        {
            let base = tempfile::tempdir().expect("a directory");
            let path = base.path().join(FILE);
            std::fs::write(&path, damaged).expect("written");
            let first = Instance::claim(Some(base.path()), None, "fresh").expect("created again");
            assert_eq!((&*first.name, &*first.directory_id), ("fresh", "fresh"));
            assert_eq!(std::fs::read(base.path().join(DAMAGED)).expect("kept"), damaged);
            let second = Instance::claim(Some(base.path()), None, "other");
            assert!(matches!(second, Err(Error::InUse(_))), "{second:?}");
            drop(first);
            let again = Instance::claim(Some(base.path()), None, "other").expect("free again");
            assert_eq!((&*again.name, &*again.directory_id), ("fresh", "fresh"));
        }
    }

    #[test]
    fn it_is_written_only_when_it_changed_and_never_in_place() {
        let base = tempfile::tempdir().expect("a directory");
        let number = || std::fs::metadata(base.path().join(FILE)).expect("there").ino();
        drop(Instance::claim(Some(base.path()), None, "amber").expect("free"));
        let first = number();
        // On a disk that is full or read-only for what is new, too.
        drop(Instance::claim(Some(base.path()), None, "other").expect("free"));
        assert_eq!(number(), first, "nothing changed");
        let renamed = Instance::claim(Some(base.path()), Some("blue"), "other").expect("free");
        assert_ne!(number(), first, "it was put in place whole");
        let second = Instance::claim(Some(base.path()), None, "other");
        assert!(matches!(second, Err(Error::InUse(_))), "{second:?}");
        drop(renamed);
        let text = std::fs::read_to_string(base.path().join(FILE)).expect("there");
        assert_eq!(text, "blue\namber\n");
        assert!(!base.path().join(FRESH).exists());
    }

    #[test]
    fn what_is_asked_for_must_be_a_name() {
        let base = tempfile::tempdir().expect("a directory");
        let refused = Instance::claim(Some(base.path()), Some("not a/name"), "amber");
        assert!(matches!(refused, Err(Error::BadName(_))), "{refused:?}");
    }
}
