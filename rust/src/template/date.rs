//! `strftime` for the directives that chat templates use.

const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats a UTC time given in seconds since 1970; directives that are not known stay as they are.
pub fn strftime(format: &str, seconds: u64) -> String {
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let month_name = MONTHS[(month - 1) as usize];
    let day_name = DAYS[(days % 7) as usize];
    let day_of_year = days - days_until(year) + 1;
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut directive = rest.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = rest.next();
        }
        let padded = |value: u64| if unpadded { value.to_string() } else { format!("{value:02}") };
        let replacement = match directive {
            Some('Y') => year.to_string(),
            Some('y') => padded(year % 100),
            Some('m') => padded(month),
            Some('d') => padded(day),
            Some('e') => format!("{day:2}"),
            Some('H') => padded(hour),
            Some('I') => padded(hour12),
            Some('M') => padded(minute),
            Some('S') => padded(second),
            Some('j') if unpadded => day_of_year.to_string(),
            Some('j') => format!("{day_of_year:03}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => ['%'].into_iter().chain(unpadded.then_some('-')).chain(other).collect(),
        };
        text.push_str(&replacement);
    }
    text
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the leap day is the last of its year.
    let days = days + 719_468;
    let era_day = days % 146_097;
    let year_of_era = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
    let day_of_year = era_day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + days / 146_097 * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// Days from 1970-01-01 to the first of January of `year`.
fn days_until(year: u64) -> u64 {
    let before = year - 1;
    365 * (year - 1970) + (before / 4 - before / 100 + before / 400) - 477
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_have_their_known_text() {
        let all = "%Y-%m-%d %H:%M:%S %y %e %-d %-m %I %p %B %b %A %a %j %F %T %%";
        assert_eq!(
            strftime(all, 0),
            "1970-01-01 00:00:00 70  1 1 1 12 AM January Jan Thursday Thu 001 1970-01-01 00:00:00 %"
        );
        assert_eq!(
            strftime(all, 1_709_217_009),
            "2024-02-29 14:30:09 24 29 29 2 02 PM February Feb Thursday Thu 060 2024-02-29 14:30:09 %"
        );
        assert_eq!(strftime("%A %j %d %B %Y", 4_102_444_799), "Thursday 365 31 December 2099");
        assert_eq!(strftime("%d %j", 951_868_799), "29 060");
        assert_eq!(strftime("%F", 4_107_542_400), "2100-03-01");
    }

    #[test]
    fn unknown_directives_stay() {
        assert_eq!(strftime("%Q %-Q %", 0), "%Q %-Q %");
    }
}
