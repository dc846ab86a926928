//! Damage is noticed by whichever call comes upon it, and mended.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::timers::index::store::{Batch, Tree};

/// Where a child of a test writes.
const CHILD_DIRECTORY: &str = "WATERCLOCK_TEST_INDEX";
/// Changes in each lane of the index that is damaged.
const WRITTEN: u64 = 2_500;

/// Every file of a closed index.
fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.metadata().expect("there").len() > 0 {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// An index with three lanes, closed, as bytes on disk.
fn written() -> TempDir {
    let room = room();
    let mut index = open(&room);
    for lane in 0..3 {
        fill(&mut index, Lane(lane), 0, WRITTEN);
    }
    index.close();
    room
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("there") {
        let path = entry.expect("readable").path();
        let to = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).expect("copied");
        }
    }
}

/// Opens the damaged index and reads every lane as a take-over would: each is exactly what it was at its position, or
/// gone. Returns how many lanes were left.
fn is_right_or_gone(room: &TempDir, why: &str) -> usize {
    let mut index = open(room);
    let mut left = 0;
    for lane in 0..3 {
        match loaded(&mut index, Lane(lane)) {
            Ok((None, model)) => {
                assert_eq!(model, Model::default(), "{why}: entries without a position")
            }
            Ok((Some(position), model)) => {
                assert_eq!(model, model_at(position.next.0 as u64), "{why}: lane {lane}");
                left += 1;
            }
            Err(error @ Error::Broken { .. }) => index = index.renew(&error).expect(why),
            Err(error) => panic!("{why}: {error}"),
        }
        // Only a writer meets some damage. It reports an error, and a store that is created again has none.
        match goes_on(&mut index, Lane(lane), why) {
            Err(error @ Error::Broken { .. }) => {
                index = index.renew(&error).expect(why);
                goes_on(&mut index, Lane(lane), why).expect(why);
            }
            gone_on => gone_on.expect(why),
        }
    }
    left
}

/// It takes what comes next, up to answers as they were before and beyond.
fn goes_on(index: &mut Index, lane: Lane, why: &str) -> Result<(), Error> {
    let next = index.position(lane).ok().flatten().map_or(0, |p| p.next.0 as u64);
    if next == 0 {
        index.clear(lane)?;
    }
    let end = (next + 600).max(WRITTEN);
    filled(index, lane, next, end)?;
    let (_, model) = loaded(index, lane)?;
    assert_eq!(model, model_at(end), "{why}: {lane:?} afterwards");
    Ok(())
}

#[test]
fn a_damaged_index_gives_right_answers_or_none() {
    let whole = written();
    let names: Vec<PathBuf> = files(&whole.path().join("index"))
        .iter()
        .map(|path| path.strip_prefix(whole.path()).expect("below").to_owned())
        .collect();
    assert!(names.len() >= 2, "{names:?}");
    let damaged = |why: &str, damage: &dyn Fn(&Path)| {
        let room = room();
        copy(whole.path(), room.path());
        damage(room.path());
        is_right_or_gone(&room, why)
    };
    assert_eq!(damaged("whole", &|_| {}), 3, "a copy of a whole one is whole");
    assert_eq!(damaged("deleted", &|at| fs::remove_dir_all(at.join("index")).expect("gone")), 0);
    for name in &names {
        let bytes = fs::read(whole.path().join(name)).expect("readable");
        let shown = name.display();
        damaged(&format!("{shown} missing"), &|at| fs::remove_file(at.join(name)).expect("gone"));
        for part in 0..4 {
            let length = bytes.len() * part / 4;
            damaged(&format!("{shown} cut at {length}"), &|at| {
                fs::write(at.join(name), &bytes[..length]).expect("written");
            });
        }
        for part in 0..12 {
            let at_byte = bytes.len() * (2 * part + 1) / 24;
            damaged(&format!("{shown} with other bytes at {at_byte}"), &|at| {
                let mut bytes = bytes.clone();
                for byte in bytes.iter_mut().skip(at_byte).take(64) {
                    *byte ^= 0x55;
                }
                fs::write(at.join(name), bytes).expect("written");
            });
            damaged(&format!("{shown} with another bit at {at_byte}"), &|at| {
                let mut bytes = bytes.clone();
                bytes.iter_mut().skip(at_byte).take(1).for_each(|byte| *byte ^= 1 << (part % 8));
                fs::write(at.join(name), bytes).expect("written");
            });
        }
    }
}

#[test]
fn a_copy_of_an_index_at_work_gives_right_answers_or_none() {
    let room = room();
    let mut index = open(&room);
    for lane in 0..3 {
        fill(&mut index, Lane(lane), 0, 20_000);
    }
    let half = tempfile::tempdir().expect("a directory");
    copy(&room.path().join("index"), &half.path().join("index"));
    for lane in 0..3 {
        fill(&mut index, Lane(lane), 20_000, 40_000);
    }
    // One file from before, the others from after.
    for name in files(&room.path().join("index")) {
        let name = name.strip_prefix(room.path()).expect("below").to_owned();
        if !name.ends_with("db") {
            fs::create_dir_all(half.path().join(&name).parent().expect("a room")).expect("made");
            fs::copy(room.path().join(&name), half.path().join(&name)).expect("copied");
        }
    }
    is_right_or_gone(&half, "half copied");
}

/// Runs one of the children below in a process of its own.
fn child(test: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args([
        "--exact",
        &format!("timers::index::tests::damage::{test}"),
        "--ignored",
        "--nocapture",
    ]);
    command.env(CHILD_DIRECTORY, directory).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn childs_index() -> Index {
    let directory = std::env::var_os(CHILD_DIRECTORY).expect("run by another test");
    Index::open(Path::new(&directory), &me()).expect("opens")
}

#[test]
#[ignore = "a child of the test below"]
fn child_writes_until_it_is_killed() {
    let mut index = childs_index();
    let mut out = std::io::stdout().lock();
    for n in 0.. {
        fill(&mut index, Lane(0), n * 50, (n + 1) * 50);
        writeln!(out, "wrote {}", (n + 1) * 50).expect("somebody reads");
    }
}

/// Waits until a child has written so many changes.
#[track_caller]
fn has_written(writer: &mut Child, after: u64) {
    let lines = BufReader::new(writer.stdout.take().expect("piped")).lines();
    let wrote = lines
        .map_while(Result::ok)
        .filter_map(|line| line.split("wrote ").nth(1)?.parse::<u64>().ok())
        .find(|wrote| *wrote >= after);
    assert!(wrote.is_some(), "the child wrote nothing");
}

#[test]
fn another_process_is_kept_out_until_the_first_is_gone() {
    let room = room();
    let directory = room.path().join("index");
    let mut first = child("child_writes_until_it_is_killed", &directory).spawn().expect("a child");
    has_written(&mut first, 1);
    let second = Index::open(&directory, &me());
    assert!(matches!(second, Err(Error::InUse(_))), "{second:?}");
    first.kill().expect("killed");
    first.wait().expect("gone");
    let (position, model) = loaded(&mut open(&room), Lane(0)).expect("whole");
    assert_eq!(model, model_at(position.map_or(0, |position| position.next.0 as u64)));
    assert_eq!(stores(&room), ["1"], "nothing was thrown away over it");
}

#[test]
fn a_kill_leaves_what_was_right_at_some_time() {
    let room = room();
    let mut kept = 0;
    for after in [100, 5_000, 20_000] {
        // The child begins at the front every time: what was written before is overwritten by the same.
        let _ = fs::remove_dir_all(room.path().join("index"));
        let mut writer = child("child_writes_until_it_is_killed", &room.path().join("index"))
            .spawn()
            .expect("a child");
        has_written(&mut writer, after);
        writer.kill().expect("killed");
        writer.wait().expect("gone");
        let mut index = open(&room);
        assert_eq!(stores(&room), ["1"], "a kill breaks nothing");
        let (position, model) = loaded(&mut index, Lane(0)).expect("whole");
        let next = position.map_or(0, |position| position.next.0 as u64);
        assert_eq!(model, model_at(next));
        kept = next;
        index.close();
    }
    assert!(kept > 0, "of 20,000 changes something was on disk");
}

/// Writes until the disk is full, and says so.
fn fill_disk(mut index: Index) {
    for n in 0_u64..1_000_000 {
        let changes: Vec<Change> = (0..100).map(|m: u64| long(n * 100 + m)).collect();
        match index.apply(Lane(0), &changes, Offset((n as i64 + 1) * 100), UnixMillis(n)) {
            Ok(_) => {}
            Err(Error::Disk { source, .. }) => {
                // Closing must not hang over it either.
                index.close();
                let told = format!("full after {n} and closed: {:?}", source.kind());
                return writeln!(std::io::stdout(), "{told}").expect("somebody reads");
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("never full");
}

#[test]
#[ignore = "a child of the tests below"]
fn child_fills_its_disk() {
    fill_disk(childs_index());
}

/// What was written before the disk was full is as it was at some time, or gone; then it takes what comes.
#[test]
#[ignore = "a child of the test below"]
fn child_goes_on_with_room_again() {
    let directory = std::env::var_os(CHILD_DIRECTORY).expect("run by another test");
    let mut index = Index::open(Path::new(&directory), &me()).expect("opens");
    let (position, model) = match loaded(&mut index, Lane(0)) {
        Err(error @ Error::Broken { .. }) => {
            index = index.renew(&error).expect("renewed");
            (None, Model::default())
        }
        found => found.expect("whole or broken"),
    };
    let next = position.map_or(0, |position| position.next.0 as u64);
    let mut wanted = Model::default();
    (0..next).for_each(|n| wanted.change(&long(n)));
    assert_eq!(model, wanted);
    let end = next + 2_000;
    for n in (next..end).step_by(100) {
        let changes: Vec<Change> = (n..n + 100).map(long).collect();
        changes.iter().for_each(|change| wanted.change(change));
        index.apply(Lane(0), &changes, Offset(n as i64 + 100), UnixMillis(n)).expect("applied");
    }
    let (position, model) = loaded(&mut index, Lane(0)).expect("whole");
    assert_eq!((position.map(|p| p.next), model), (Some(Offset(end as i64)), wanted));
    index.close();
    writeln!(std::io::stdout(), "goes on").expect("somebody reads");
}

#[test]
#[ignore = "a child of the test below"]
fn child_may_not_write() {
    let directory = std::env::var_os(CHILD_DIRECTORY).expect("run by another test");
    match Index::open(Path::new(&directory), &me()) {
        Err(Error::Refused { source, .. }) => {
            writeln!(std::io::stdout(), "refused: {:?}", source.kind()).expect("somebody reads");
        }
        other => panic!("{other:?}"),
    }
}

/// A limit on the size of files stands for a full disk: the write fails in the system, as it would there.
#[cfg(unix)]
#[test]
fn a_disk_that_fills_is_told_and_breaks_nothing_else() {
    let room = room();
    let told = child("child_fills_its_disk", &room.path().join("index"));
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 4096; exec \"$@\"", "sh"]);
    limited.arg(told.get_program()).args(told.get_args());
    limited.env(CHILD_DIRECTORY, room.path().join("index"));
    let output = limited.output().expect("sh runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("and closed: FileTooLarge"), "{told}");
    assert!(output.status.success(), "{told}");
    // With room again, the index is intact or started again.
    let heals = child("child_goes_on_with_room_again", &room.path().join("index")).output();
    let told = String::from_utf8_lossy(&heals.expect("a child").stdout).into_owned();
    assert!(told.contains("goes on"), "{told}");
}

/// A real full disk, and one that may only be read: a small tmpfs in a mount namespace of its own.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs the right to mount: scripts/test runs it where it is given"]
fn a_small_disk_fills_and_heals_and_one_for_reading_is_refused() {
    let room = room();
    let script = r#"
        set -e
        mount -t tmpfs -o size=12m none "$0" || { echo "cannot mount"; exit 1; }
        run() { "$1" --exact "timers::index::tests::damage::$2" --ignored --nocapture 2>&1 || exit 1; }
        run "$1" child_fills_its_disk
        mount -o remount,size=200m "$0"
        run "$1" child_goes_on_with_room_again
        mount -o remount,ro "$0"
        run "$1" child_may_not_write
    "#;
    let mut small = Command::new("unshare");
    small.args(["--mount", "--map-root-user", "sh", "-c", script]).arg(room.path());
    small.arg(std::env::current_exe().expect("this test"));
    let output = small.env(CHILD_DIRECTORY, room.path().join("index")).output();
    let told = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let told = told.unwrap_or_else(|error| format!("cannot mount: {error}"));
    for line in ["and closed: StorageFull", "goes on", "refused: ReadOnlyFilesystem"] {
        assert!(told.contains(line), "no {line:?}: {told}");
    }
}

/// All keys of a tree in the store.
fn keys(tree: &Tree) -> Vec<Vec<u8>> {
    let (mut keys, mut from) = (Vec::new(), Vec::new());
    while let Some((key, _)) = tree.ceiling(&from).expect("readable") {
        from = [&key[..], &[0]].concat();
        keys.push(key.to_vec());
    }
    keys
}

/// A look-up by name, or a list, gives nothing but what was written.
#[test]
fn a_reader_notices_what_is_damaged_behind_its_back_and_tells_the_writer() {
    let room = room();
    let mut index = open(&room);
    fill(&mut index, Lane(0), 0, WRITTEN);
    let (reader, model) = (index.reader(), model_at(WRITTEN));
    let tree = index.store.tree(&tree(Lane(0))).expect("there");
    let leaves: Vec<_> = keys(&tree).into_iter().filter(|key| key.first() == Some(&b'l')).collect();
    assert!(leaves.len() > 20, "{}", leaves.len());
    let (mut noticed, mut by_listing) = (0, 0);
    for (number, leaf) in leaves.iter().enumerate() {
        let bytes = tree.get(leaf).expect("readable").expect("there");
        if number % 2 == 0 {
            tree.remove(leaf).expect("removed");
        } else {
            let mut flipped = bytes.to_vec();
            let at = number * 31 % flipped.len();
            flipped[at] ^= 1 << (number % 8);
            let mut batch = Batch::default();
            batch.put(leaf, flipped);
            tree.write(batch).expect("written");
        }
        for n in 0..301 {
            let id = format!("order-{n}").into_bytes();
            let timer_id = TimerId::new(None, &id);
            match reader.find(Lane(0), timer_id) {
                Ok(timer) => assert_eq!(timer.as_ref(), model.timers.get(&timer_id)),
                Err(Error::Broken { .. }) => noticed += 1,
                Err(other) => panic!("{other}"),
            }
        }
        match listed(&reader, Lane(0), &Filter::default(), true) {
            Ok(timers) => assert_eq!(timers, model.timers),
            Err(Error::Broken { .. }) => by_listing += 1,
            Err(other) => panic!("{other}"),
        }
        let mut batch = Batch::default();
        batch.put(leaf, bytes.to_vec());
        tree.write(batch).expect("written");
    }
    assert!(noticed > 20 && by_listing > 20, "{noticed} and {by_listing}");
    let told = index.apply(Lane(0), &[], Offset(WRITTEN as i64), UnixMillis(1));
    assert!(matches!(told, Err(Error::Broken { .. })), "{told:?}");
}

#[test]
fn entries_that_do_not_match_their_position_are_not_believed() {
    let room = room();
    let mut index = open(&room);
    fill(&mut index, Lane(0), 0, WRITTEN);
    let tree = index.store.tree(&tree(Lane(0))).expect("there");
    for key in keys(&tree).into_iter().filter(|key| key.first() != Some(&b's')) {
        let bytes = tree.get(&key).expect("readable").expect("there");
        tree.remove(&key).expect("removed");
        match loaded(&mut index, Lane(0)) {
            // Without a position there is nothing to go on from, and of a run all may stand in leaves.
            Ok((None, _)) => assert_eq!(key, b"p"),
            Ok((Some(_), found)) => {
                assert_eq!((key[0], found), (b'r', model_at(WRITTEN)), "{key:?}");
            }
            Err(Error::Broken { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        let mut batch = Batch::default();
        batch.put(&key, bytes.to_vec());
        tree.write(batch).expect("written");
    }
    assert_eq!(loaded(&mut index, Lane(0)).expect("whole").1, model_at(WRITTEN));
}
