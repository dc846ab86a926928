"""A second opinion on cron and clock changes, for schedules.rs. Standard library only.

It does not search. It walks over every minute (or second) of a span as the world sees it, asks zoneinfo what the clock of the zone
shows then, and looks whether that matches. So it shares no idea with the engine but the meaning:

* A pattern with a `*` in its seconds, minutes or hours matches whatever the clock shows.
* Any other one matches what the clock shows for the first time since it was last set, or what it has just jumped over.
* A day matches if either of its fields has it; if one of them has a `*`, both must.

Reads spans as JSON from stdin, one a line: {"zone", "from", "until", "step", "patterns", "refused"}, times in seconds since the epoch.
Writes for each a line: {"times", "days"}. The first has the times of each pattern, as steps behind `from`. The second has a day of each
of the others, or null: none of them has one.

Zones come from PYTHONTZPATH, where schedules.rs puts the database of the engine: so both have one version of it.
"""

import calendar
import json
import sys
import zoneinfo
from datetime import date, datetime, timedelta

EPOCH = datetime(1970, 1, 1)
# A clock is never set back by more than this: what it has shown before that is known after so long a walk.
BEFORE = 2 * 86400
MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
WEEKDAYS = "SUN MON TUE WED THU FRI SAT".split()


def number(text, names, first):
    return first + names.index(text) if text in names else int(text)


def numbers(field, low, high, names=()):
    """The numbers of a field: a list of ranges with steps."""
    found = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        if span == "*":
            begin, end = low, high
        elif "-" in span:
            begin, end = (number(part, names, low) for part in span.split("-"))
            if names is WEEKDAYS and end < begin:
                end += 7
        else:
            begin = end = number(span, names, low)
        found.update(range(begin, end + 1, int(step or 1)))
    return found


class Pattern:
    def __init__(self, text):
        fields = text.upper().split()
        if len(fields) == 5:
            fields.insert(0, "0")
        second, minute, hour, self.day, month, self.weekday = fields
        self.seconds = numbers(second, 0, 59)
        self.minutes = numbers(minute, 0, 59)
        self.hours = numbers(hour, 0, 23)
        self.months = numbers(month, 1, 12, MONTHS)
        self.follows_clock = "*" in second + minute + hour
        self.days = {}

    def has_day(self, day):
        """Remembers what it has found for a day."""
        if day not in self.days:
            self.days[day] = day.month in self.months and self.find_day(day)
        return self.days[day]

    def find_day(self, day):
        of_month = any(self.is_of_month(item, day) for item in self.day.split(","))
        of_week = any(self.is_of_week(item, day) for item in self.weekday.split(","))
        if "*" in self.day or "*" in self.weekday:
            return of_month and of_week
        return of_month or of_week

    @staticmethod
    def is_of_month(item, day):
        length = calendar.monthrange(day.year, day.month)[1]
        working = [n for n in range(1, length + 1) if date(day.year, day.month, n).weekday() < 5]
        if item == "L":
            return day.day == length
        if item == "LW":
            return day.day == working[-1]
        if item.endswith("W"):
            wanted = int(item[:-1])
            return wanted <= length and day.day == min(working, key=lambda n: abs(n - wanted))
        return day.day in numbers(item, 1, 31)

    @staticmethod
    def is_of_week(item, day):
        # Sunday is 0.
        weekday = (day.weekday() + 1) % 7
        name, nth, week = item.partition("#")
        if nth:
            return number(name, WEEKDAYS, 0) % 7 == weekday and (day.day - 1) // 7 + 1 == int(week)
        if item.endswith("L"):
            is_last = (day + timedelta(days=7)).month != day.month
            return number(item[:-1], WEEKDAYS, 0) % 7 == weekday and is_last
        return weekday in {n % 7 for n in numbers(item, 0, 6, WEEKDAYS)}

    def has_clock(self, clock):
        hour, minute, second = clock
        return minute in self.minutes and hour in self.hours and second in self.seconds

    def matches(self, shown):
        day, clock = shown
        return self.has_clock(clock) and self.has_day(day)


def shown_at(wall):
    """What a clock shows: the day, and the time of day. Both are told in seconds as if it were one of UTC."""
    at = EPOCH + timedelta(seconds=wall)
    return at.date(), (at.hour, at.minute, at.second)


def walk(zone, begin, until, step):
    """What the clock shows in each step.

    Steps that show what has never been shown before, right behind what the step before has shown, stand by their days. The others stand
    apart, with all that they show for the first time or have just jumped over.
    """

    def wall_at(at):
        return int((datetime.fromtimestamp(at, zone).replace(tzinfo=None) - EPOCH).total_seconds())

    # Clocks are set at whole minutes: the end of a minute shows the most of it.
    highest = max(wall_at(at + 60 - step) for at in range(begin - BEFORE, begin, 60))
    days, others = {}, []
    for index, at in enumerate(range(begin, until, step)):
        wall = wall_at(at)
        shown = shown_at(wall)
        if wall == highest + step:
            days.setdefault(shown[0], []).append((index, shown[1]))
        else:
            new = [shown_at(new) for new in range(highest + step, wall + 1, step)]
            others.append((index, shown, new))
        highest = max(highest, wall)
    return days, others


def times(pattern, days, others):
    found = [
        index
        for day, clocks in days.items()
        if pattern.has_day(day)
        for index, clock in clocks
        if pattern.has_clock(clock)
    ]
    for index, shown, new in others:
        if any(map(pattern.matches, [shown] if pattern.follows_clock else new)):
            found.append(index)
    return sorted(found)


def some_day(pattern):
    """A day that a pattern has. In 28 years of one century each date falls on each weekday, 29 February, too."""
    first = date(2000, 1, 1)
    days = (first + timedelta(days) for days in range(28 * 365 + 7))
    return next((str(day) for day in days if pattern.has_day(day)), None)


def main():
    for line in sys.stdin:
        span = json.loads(line)
        shown = walk(zoneinfo.ZoneInfo(span["zone"]), span["from"], span["until"], span["step"])
        found = {
            "times": [times(Pattern(text), *shown) for text in span["patterns"]],
            "days": [some_day(Pattern(text)) for text in span["refused"]],
        }
        print(json.dumps(found, separators=(",", ":")))


main()
