//! The directory of an index: made for its owner's eyes only, locked, with the stores in it numbered.
//!
//! The store with the highest number is the one in use. One that is broken stays where it is and a new number is begun:
//! a broken store that still has threads cannot reach the new one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::Error;

/// How many abandoned stores are kept, for somebody who wants to know what happened to them.
pub const ASIDE_MAX: usize = 2;

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| of_system(what, path, source)
}

/// What the system said about a file: something for a person, or a reason to go on without.
pub(super) fn of_system(what: &'static str, path: PathBuf, source: io::Error) -> Error {
    use io::ErrorKind::{AlreadyExists, NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    match source.kind() {
        PermissionDenied | ReadOnlyFilesystem | NotADirectory | AlreadyExists => {
            Error::Refused { what, path, source }
        }
        _ => Error::Disk { what, path, source },
    }
}

/// Makes the directory, readable for nobody else.
pub(super) fn make(directory: &Path) -> Result<(), Error> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory).map_err(failed("make", directory))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // It may have been there before us, or have been copied.
        let found = fs::metadata(directory).map_err(failed("look at", directory))?;
        if found.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
                .map_err(failed("restrict", directory))?;
        }
    }
    Ok(())
}

/// Takes the directory for this process for as long as the file lives.
pub(super) fn lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(directory.to_owned())),
        Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
    }
}

/// The store in use; the first one where there is none.
pub(super) fn newest(directory: &Path) -> Result<PathBuf, Error> {
    Ok(numbered(directory)?.pop().map_or_else(|| directory.join("1"), |(_, path)| path))
}

/// A place for the next store. Of those before it, all but the newest few are deleted.
pub(super) fn next(directory: &Path) -> Result<PathBuf, Error> {
    let mut before = numbered(directory)?;
    let number = before.last().map_or(1, |(number, _)| number + 1);
    before.truncate(before.len().saturating_sub(ASIDE_MAX));
    for (_, old) in before {
        // What cannot be deleted takes room and does no harm.
        let _ = fs::remove_dir_all(old);
    }
    Ok(directory.join(number.to_string()))
}

/// How many stores there are.
pub(super) fn count(directory: &Path) -> Result<usize, Error> {
    Ok(numbered(directory)?.len())
}

/// All stores in the directory, by number.
fn numbered(directory: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let entries = fs::read_dir(directory).map_err(failed("list", directory))?;
    let mut found: Vec<(u64, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    found.sort();
    Ok(found)
}
