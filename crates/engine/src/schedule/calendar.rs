//! The calendar: months, and where they stand among the days since 1970-01-01.

/// Seconds of a day.
pub(super) const DAY: i64 = 86_400;

/// A month of a year, counted from the January of year 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Month(i64);

impl Month {
    /// The January of a year.
    pub(super) const fn of_year(year: i64) -> Self {
        Self(year * 12)
    }

    /// The month of a day since 1970-01-01, and which day of it that is, from 0.
    pub(super) fn of_day(day: i64) -> (Self, u32) {
        // 400 years have 4,800 months and 146,097 days. The guess is off by one at most.
        let mut month = Self(1970 * 12 + (day * 4_800).div_euclid(146_097));
        while month.first_day() > day {
            month = month.plus(-1);
        }
        while month.plus(1).first_day() <= day {
            month = month.plus(1);
        }
        (month, (day - month.first_day()) as u32)
    }

    /// The month so many months later.
    pub(super) const fn plus(self, months: i64) -> Self {
        Self(self.0 + months)
    }

    /// Its place in the year, from 0.
    pub(super) const fn in_year(self) -> u32 {
        self.0.rem_euclid(12) as u32
    }

    /// Its first day, since 1970-01-01.
    pub(super) const fn first_day(self) -> i64 {
        const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        /// Leap days before 1970, counted as below.
        const LEAP_DAYS_1970: i64 = 477;
        let (year, month) = (self.0.div_euclid(12), self.0.rem_euclid(12));
        // That of this year has passed from March on.
        let leap_years = if month < 2 { year - 1 } else { year };
        let leap_days =
            leap_years.div_euclid(4) - leap_years.div_euclid(100) + leap_years.div_euclid(400);
        (year - 1970) * 365 + leap_days - LEAP_DAYS_1970 + BEFORE[month as usize]
    }

    /// How many days it has.
    pub(super) const fn len(self) -> u32 {
        (self.plus(1).first_day() - self.first_day()) as u32
    }

    /// The weekday of its first day; Sunday is 0.
    pub(super) const fn first_weekday(self) -> u32 {
        // 1970-01-01 was a Thursday.
        (self.first_day() + 4).rem_euclid(7) as u32
    }
}

#[cfg(test)]
mod tests;
