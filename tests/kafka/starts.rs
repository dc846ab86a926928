//! Several first starts at once, as containers do it that apply the topics and then run.

use std::time::Duration;

use crate::support::{
    Fixture, Log, Mode, Process, Rec, assert_each_once, in_both_modes, out, whole,
};

in_both_modes!(three_containers_that_apply_and_run_on_a_cold_namespace_agree);

fn three_containers_that_apply_and_run_on_a_cold_namespace_agree(mode: Mode) {
    let short = if mode == Mode::ExactlyOnce { "eos" } else { "alo" };
    let fixture = Fixture::cold(&format!("starts-{short}"));
    let target = fixture.target("out", 2);
    let (brokers, namespace) = (&fixture.connection.brokers, fixture.namespace());
    let options = format!("--brokers '{brokers}' --namespace '{namespace}'");
    let script = format!(
        "\"$0\" topics apply --lanes 3 --ladder 1s,2s,5s {options} >/dev/null || exit 99; exec \"$0\" \"$@\""
    );
    let mut processes: Vec<Process> = ["a", "b", "c"]
        .map(|data| fixture.launch(mode).data(data).through(&["sh", "-c", &script]).spawn())
        .into();
    processes.iter_mut().for_each(Process::wait_until_ready);
    let producer = fixture.producer();
    let records = |from: usize, to: usize, delay: &str| {
        for n in from..to {
            let record = out(n.to_string()).key(format!("k{n}")).delay(delay).to(&target);
            producer.send(&fixture.names.intake(), &record);
        }
    };
    // Each process seals for others, who take its lanes over.
    for (gone, process) in processes.iter_mut().enumerate() {
        records(gone * 40, gone * 40 + 40, "6s");
        records(1_000 + gone, 1_001 + gone, "0s");
        let marker = (1_000 + gone).to_string();
        let arrived = |seen: &[Rec]| seen.iter().any(|rec| rec.text() == marker);
        Log::open(&fixture, &target).until("what was due at once is there", arrived);
        std::thread::sleep(Duration::from_secs(1));
        process.stop_well();
    }
    let mut last = fixture.launch(mode).data("d").start();
    Log::open(&fixture, &target).count(123);
    fixture.wait_until_nothing_is_pending();
    last.stop_well();
    assert_eq!(whole(&fixture, &fixture.names.dead()), []);
    let ids = (0..120).chain(1_000..1_003).map(|n: usize| n.to_string());
    assert_each_once(ids, &whole(&fixture, &target));
}
