use jiff::civil::date;

use super::*;

/// Every month that a search can come across, against another calendar.
#[test]
fn months_are_those_of_the_gregorian_calendar() {
    let epoch = date(1970, 1, 1);
    for year in 1600..5_300i16 {
        for in_year in 0..12 {
            let first = date(year, in_year + 1, 1);
            let month = Month::of_year(year.into()).plus(in_year.into());
            let first_day = first.duration_since(epoch).as_hours() / 24;
            assert_eq!(month.first_day(), first_day, "{first}");
            assert_eq!(month.in_year(), in_year as u32, "{first}");
            assert_eq!(month.len(), first.days_in_month() as u32, "{first}");
            let weekday = first.weekday().to_sunday_zero_offset();
            assert_eq!(month.first_weekday(), weekday as u32, "{first}");
            let last = month.len() - 1;
            for day in [0, 1, last] {
                assert_eq!(Month::of_day(first_day + i64::from(day)), (month, day), "{first}");
            }
        }
    }
}
