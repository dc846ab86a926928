//! The recipes of `docs/cookbook.md`, by the whole programs in four languages, against a real Kafka. What they do is judged by what
//! arrives where and when, what the API knows, and what they print.

mod reminders;
mod retries;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use super::clients::Client;
use crate::support::wire::{self, Of};
use crate::support::{
    Fixture, Log, Mode, PATIENCE, Process, Producer, Rec, ask, eventually, now_ms, out, patient,
    whole,
};

/// A namespace, an instance, and a program in one of the languages.
struct Shop {
    fixture: Fixture,
    process: Process,
    client: Client,
}

impl Shop {
    fn open(name: &str, client: fn(&Fixture, &Process) -> Client) -> Self {
        let fixture = Fixture::new(&format!("cook-{name}"));
        let process = fixture.start(Mode::ExactlyOnce);
        let client = client(&fixture, &process);
        Self { fixture, process, client }
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        self.client.run(arguments)
    }

    /// When the timer is due, as soon as this is so.
    #[track_caller]
    fn is_due(&self, key: &str, id: &str, so: impl Fn(u64) -> bool) {
        eventually("it is due then", || {
            let path = format!("/v1/timers/{id}?key={key}");
            let told = ask(&self.process, "GET", &path, None).body;
            match told["due"].as_u64() {
                Some(due) if told["state"] == "delay" && so(due) => Ok(()),
                _ => Err(told.to_string()),
            }
        });
    }

    /// Everything that arrived, once nothing more is to come, in the order of arrival.
    #[track_caller]
    fn arrived(&self, topic: &str) -> Vec<Rec> {
        self.fixture.wait_until_nothing_is_pending();
        let mut all = whole(&self.fixture, topic);
        all.sort_by_key(|rec| rec.at);
        all
    }

    /// The worker of the topic has committed its offset behind each of these.
    #[track_caller]
    fn is_committed(&self, topic: &str, all: &[Rec]) {
        let mut config = self.fixture.client();
        config.set("group.id", format!("{topic}-worker"));
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let last: BTreeMap<i32, i64> = all.iter().map(|rec| (rec.partition, rec.offset)).collect();
        let mut asked = TopicPartitionList::new();
        for partition in last.keys() {
            asked.add_partition(topic, *partition);
        }
        let told = consumer.committed_offsets(asked, PATIENCE).expect("offsets");
        for (partition, offset) in last {
            let committed = told.find_partition(topic, partition).expect("it was asked").offset();
            assert_eq!(committed, Offset::Offset(offset + 1), "{topic}/{partition}");
        }
    }
}

/// Makes a test of each recipe in each language, by whose name scripts/test leaves it out where the language is missing.
macro_rules! in_every_language {
    ($($recipe:ident),+ $(,)?) => { $(
        mod $recipe {
            use super::{Client, Shop};
            #[test]
            fn the_java_program_of_the_cookbook() {
                super::$recipe(&Shop::open("java", Client::java));
            }
            #[test]
            fn the_python_program_of_the_cookbook() {
                super::$recipe(&Shop::open("python", |f, p| Client::python(f, p, "murmur2_random")));
            }
            #[test]
            fn the_go_program_of_the_cookbook() {
                super::$recipe(&Shop::open("go", Client::go));
            }
            #[test]
            fn the_rust_program_of_the_cookbook() {
                super::$recipe(&Shop::open("rust", Client::rust));
            }
        }
    )+ };
}

in_every_language!(order, stock, coupon, payment, retry, refused);

/// An order that is paid in time is never closed; of one that is paid too late the money is given back.
fn order(shop: &Shop) {
    let target = shop.fixture.timed_target("unpaid", 3);
    shop.client.says_how_it_is_used(&["order", &target], "order TARGET ORDER DELAY");
    let began = now_ms();
    shop.run(&["order", &target, "order-17", "30m"]);
    let ended = now_ms();
    let wait = 30 * 60_000;
    shop.is_due("order-17", "payment", |due| (began + wait..=ended + wait).contains(&due));
    for _ in 0..2 {
        assert_eq!(shop.run(&["paid", "order-17"]), "order-17: ship it");
    }

    let began = now_ms();
    shop.run(&["order", &target, "order-18", "2s"]);
    let closed = Log::open(&shop.fixture, &target).count(1)[0].clone();
    assert!(closed.at >= began + 2_000, "{began} {closed:?}");
    assert_eq!(shop.run(&["paid", "order-18"]), "order-18: give the money back");
    let errors = shop.client.fails(&["paid", "order-19"]).to_lowercase();
    assert!(errors.contains("order-19: unknown"), "{errors}");

    assert_eq!(shop.run(&["consume", &target, "1"]), "order-18: nobody has paid");
    let all = shop.arrived(&target);
    assert_eq!(all, [closed]);
    shop.is_committed(&target, &all);
}

/// Stock is released once, at the time that it was put off to; lists show what is pending of one label, page by page.
fn stock(shop: &Shop) {
    const MORE: usize = 120;
    let target = shop.fixture.timed_target("stock", 3);
    let labelled = || -> BTreeMap<String, u64> {
        let lines = shop.run(&["labelled", "basket & co"]);
        let of = |line: &str| {
            let (name, left) = line.split_once(", due in ")?;
            Some((name.to_owned(), left.strip_suffix(" s")?.parse().ok()?))
        };
        lines.lines().map(|line| of(line).expect(line)).collect()
    };
    assert!(labelled().is_empty(), "nothing is reserved");
    shop.run(&["stock", &target, "sku-9", "reservation-17", "7d", "basket & co"]);
    shop.run(&["stock", &target, "sku-9", "reservation-18", "7d", "another"]);
    let week = 7 * 86_400;
    shop.is_due("sku-9", "reservation-17", |_| true);
    let listed = labelled();
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["reservation-17 of sku-9"]);
    assert!(listed.values().all(|left| (week - 300..=week).contains(left)), "{listed:?}");

    assert_eq!(shop.run(&["longer", "sku-9", "reservation-17", "9d"]), "replaced", "two days more");
    let longer = 9 * 86_400;
    let listed = labelled();
    assert!(listed.values().all(|left| (longer - 300..=longer).contains(left)), "{listed:?}");
    let nothing = shop.run(&["longer", "sku-9", "no-reservation", "9d"]);
    assert!(nothing.starts_with("unknown_timer"), "{nothing}");

    // More than a page.
    let producer = shop.fixture.producer();
    for n in 0..MORE {
        let more = out("release").key("sku-1").to(&target).delay("1h");
        let more = more.header("x-delay-id", n.to_string()).header("x-delay-label", "basket & co");
        producer.send(&shop.fixture.names.intake(), &more);
    }
    producer.acks();
    eventually("all of them are known", || {
        let path = "/v1/timers?label=basket%20%26%20co&limit=1000";
        let told = ask(&shop.process, "GET", path, None).body;
        let count = told["timers"].as_array().map_or(0, Vec::len);
        if count == MORE + 1 { Ok(()) } else { Err(format!("{count}: {told}")) }
    });
    assert_eq!(labelled().len(), MORE + 1);
    cancel_all(shop, MORE);

    let began = now_ms();
    assert_eq!(shop.run(&["longer", "sku-9", "reservation-17", "2s"]), "replaced");
    let released = Log::open(&shop.fixture, &target).count(1)[0].clone();
    assert_eq!(released.text(), "release reservation-17");
    assert!(released.at >= began + 2_000, "{began} {released:?}");
    let late = shop.run(&["longer", "sku-9", "reservation-17", "2s"]);
    assert_eq!(late, "not_pending (delivered)");
    assert!(labelled().is_empty(), "nothing is reserved any more");
    assert_eq!(shop.run(&["consume", &target, "1"]), "sku-9: release reservation-17");

    shop.run(&["longer", "sku-9", "reservation-18", "1s"]);
    let texts: Vec<String> = shop.arrived(&target).iter().map(Rec::text).collect();
    assert_eq!(texts, ["release reservation-17", "release reservation-18"]);
}

/// Ends what was only there to fill pages.
fn cancel_all(shop: &Shop, count: usize) {
    let timers: Vec<serde_json::Value> =
        (0..count).map(|n| serde_json::json!({ "id": n.to_string(), "key": "sku-1" })).collect();
    let body = serde_json::json!({ "timers": timers, "wait": "30s" });
    let told = ask(&shop.process, "POST", "/v1/timers:batchCancel", Some(&body)).body;
    let outcomes = told["timers"].as_array().expect("all of them").iter();
    assert!(outcomes.clone().all(|told| told["outcome"] == "cancelled"), "{told}");
    assert_eq!(outcomes.count(), count);
}

/// A reminder comes at its time before the end, and only the last one; one of a coupon that has ended does not come.
fn coupon(shop: &Shop) {
    let target = shop.fixture.timed_target("coupons", 3);
    let in_seconds = |seconds: i64| -> (String, u64) {
        let second = now_ms() as i64 / 1_000 + seconds;
        (Timestamp::from_second(second).expect("a time").to_string(), second as u64 * 1_000)
    };
    let day = 86_400;
    for days in [3, 10] {
        let (ends, end) = in_seconds(days * day);
        shop.run(&["coupon", &target, "customer-7", "coupon-5", &ends, "86400"]);
        shop.is_due("customer-7", "coupon-5", |due| due == end - day as u64 * 1_000);
    }
    let (ends, end) = in_seconds(day + 8);
    shop.run(&["coupon", &target, "customer-7", "coupon-5", &ends, "86400"]);
    let said = now_ms();
    let reminder = Log::open(&shop.fixture, &target).count(1)[0].clone();
    let due = end - day as u64 * 1_000;
    let most = patient(Duration::from_secs(10)).as_millis() as u64;
    assert_eq!(reminder.text(), format!("coupon-5 ends at {ends}"));
    assert!((due..due.max(said) + most).contains(&reminder.at), "{due}: {reminder:?}");

    let (ended, _) = in_seconds(-60);
    shop.run(&["coupon", &target, "customer-7", "coupon-6", &ended, "86400"]);
    let dead = Log::open(&shop.fixture, &shop.fixture.names.dead()).count(1)[0].clone();
    assert_eq!(dead.header("x-delay-error-code").as_deref(), Some("expired"), "{dead:?}");
    assert_eq!(dead.text(), format!("coupon-6 ends at {ended}"));
    assert_eq!(shop.arrived(&target), [reminder], "one mail");
}

/// The same question comes at equal intervals until its answer is final, or it was asked often enough.
fn payment(shop: &Shop) {
    let target = shop.fixture.timed_target("payments", 3);
    let said = shop.run(&["payment", &target, "payment-3", "1s", "5", "3"]);
    assert_eq!(said, "payment-3: final, asked 3 times");
    let said = shop.run(&["payment", &target, "payment-4", "2s", "2", "9"]);
    assert_eq!(said, "payment-4: given up, asked 2 times");
    let all = shop.arrived(&target);
    for (payment, times, interval) in [("payment-3", 3, 1_000), ("payment-4", 2, 2_000)] {
        let key = Some(payment.as_bytes().to_vec());
        let of: Vec<&Rec> = all.iter().filter(|rec| rec.key == key).collect();
        let attempts: Vec<u32> = of
            .iter()
            .map(|rec| rec.header("x-delay-attempt").expect("traced").parse().expect("a number"))
            .collect();
        assert_eq!(attempts, (1..=times).collect::<Vec<_>>(), "{payment}");
        comes_after(&of, |_| interval);
    }
    assert_eq!(all.len(), 5);
    shop.is_committed(&target, &all);
}

/// What fails is tried again in its partition, with a longer delay each time, and then given up; all else passes it. Its offset is
/// committed.
fn retry(shop: &Shop) {
    let topic = shop.fixture.timed_target("orders", 3);
    let given_up = shop.fixture.timed_target("failed", 1);
    let producer = shop.fixture.producer();
    // As any producer writes it: with a key or without, in whatever partition.
    let records = [
        out("fine").key("a").at(0),
        out("fail 2").key("a").at(0).header("own", b"\xff").null_header("none"),
        out("fail 9").at(1).header("own", b"\xff").null_header("none"),
        out("also fine").key("b").at(0),
    ];
    for record in &records {
        producer.send(&topic, record);
    }
    producer.acks();
    let said = shop.run(&["retry", &topic, &given_up, "1", "3", "4"]);
    let of = |name: &str| -> Vec<&str> {
        let lines = said.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(of, _)| *of == name).map(|(_, what)| what).collect()
    };
    assert_eq!(of("fine"), ["done"]);
    assert_eq!(of("also fine"), ["done"]);
    assert_eq!(of("fail 2"), ["again", "again", "done"]);
    assert_eq!(of("fail 9"), ["again", "again", "again", "given up"]);
    let place = |line: &str| said.lines().position(|said| said == line).expect("it was said");
    assert!(place("also fine: done") < place("fail 2: done"), "nothing waits for it: {said}");

    let all = shop.arrived(&topic);
    assert_eq!(all.len(), 1 + 1 + 3 + 4, "{all:?}");
    for (record, tries) in records.iter().zip([1, 3, 4, 1]) {
        let of: Vec<&Rec> = all.iter().filter(|rec| rec.value == record.value).collect();
        assert_eq!(of.len(), tries, "{record:?}");
        for (n, rec) in of.iter().enumerate() {
            assert_eq!(Some(rec.partition), record.partition, "{rec:?}");
            let attempt = (n > 0).then(|| n.to_string());
            assert_eq!(rec.header("x-delay-attempt"), attempt, "{rec:?}");
            is_of(rec, record);
        }
        comes_after(&of, |n| 1_000 << n);
    }
    shop.is_committed(&topic, &all);

    let given_up = shop.arrived(&given_up);
    assert_eq!(given_up.len(), 1, "{given_up:?}");
    is_of(&given_up[0], &records[2]);
    assert_eq!(given_up[0].header("why").as_deref(), Some("failure 4"));
}

/// What could not be submitted is not committed: it is consumed again, and nothing is lost.
fn refused(shop: &Shop) {
    let topic = shop.fixture.target("orders", 1);
    let given_up = shop.fixture.target("failed", 1);
    shop.fixture.producer().send_one(&topic, &out("fail 1").key("a"));
    let intake = shop.fixture.names.intake();
    let most = |bytes: &str| {
        let brokers = &shop.fixture.connection.brokers;
        wire::set(brokers, Of::Topic, &intake, ("max.message.bytes", bytes));
    };
    // A broker hears of a change a moment later.
    let probe = |is_taken: bool| {
        eventually("the intake has its new limit", || {
            let producer = Producer::new(&shop.fixture, &[]);
            producer.send(&intake, &out("a probe"));
            match producer.settled().pop() {
                Some(Some(told)) if told.is_ok() == is_taken => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    };
    most("1");
    probe(false);
    // There is no tier of 3 s, to which a client could write instead.
    let arguments = ["retry", &topic, &given_up, "3", "3", "1"];
    shop.client.fails(&arguments);
    // As topics/intake.toml has it.
    most("2162688");
    probe(true);
    let said = shop.run(&arguments);
    assert_eq!(said, "fail 1: again\nfail 1: done");
    let all = shop.arrived(&topic);
    assert_eq!(all.len(), 2, "{all:?}");
    shop.is_committed(&topic, &all);
}

/// Each comes that many milliseconds after the one before it, or a little later; the first one may have waited for the program to start.
#[track_caller]
fn comes_after(of: &[&Rec], pause: impl Fn(usize) -> u64) {
    let late = patient(Duration::from_secs(10)).as_millis() as u64;
    for (n, pair) in of.windows(2).enumerate() {
        let (pause, took) = (pause(n), pair[1].at - pair[0].at);
        let is_late = took >= pause + late && pair[0].header("x-delay-due").is_some();
        assert!(took >= pause && !is_late, "{took} ms, and not {pause}: {pair:?}");
    }
}

/// Key, value and headers are those that it was written with.
#[track_caller]
fn is_of(rec: &Rec, written: &crate::support::Out) {
    assert_eq!((&rec.key, &rec.value), (&written.key, &written.value));
    for (name, value) in &written.headers {
        let own: Vec<_> = rec.headers.iter().filter(|(of, _)| of == name.as_bytes()).collect();
        assert_eq!(own, [&(name.clone().into_bytes(), value.clone())], "{rec:?}");
    }
}
