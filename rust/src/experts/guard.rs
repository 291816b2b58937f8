//! How much of their memory experts must do without, by what the process is measured to take.
//!
//! What a process takes is counted before it is taken, but no count is exact, and others want
//! memory too. So it is measured from time to time. What is too much is taken from the experts at
//! once, and given back slowly, when there has been room for a while. Owns: that decision, a pure
//! function of measurements and time. Does not own: measuring, giving up experts.

use std::time::Duration;

/// What is taken beyond the excess, so that it is not taken in drops: a share of what may be used.
const MORE: u64 = 64;
/// Room, as a share of what may be used, from which on something is given back.
const ROOM: u64 = 32;
/// How long there must be room.
const CALM: Duration = Duration::from_secs(5);

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Anonymous bytes of the process.
    pub used: u64,
    /// Most that may be.
    pub may: u64,
}

/// What experts do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    withheld: u64,
    /// Since when there has been room.
    calm_since: Option<Duration>,
}

impl Guard {
    /// Bytes that experts do without at present.
    pub fn withheld(&self) -> u64 {
        self.withheld
    }

    /// Takes a measurement at the time `now`; experts can do without `most` bytes at most. Returns
    /// whether [`Self::withheld`] is another now.
    pub fn measure(&mut self, now: Duration, measured: Measured, most: u64) -> bool {
        let before = self.withheld;
        let Measured { used, may } = measured;
        if used > may {
            self.calm_since = None;
            self.withheld = before.saturating_add(used - may + may / MORE).min(most);
        } else if before == 0 || may - used < may / ROOM {
            self.calm_since = None;
        } else if now.saturating_sub(*self.calm_since.get_or_insert(now)) >= CALM {
            self.calm_since = None;
            // Half, so that it comes to rest below the limit.
            self.withheld = before.saturating_sub((may - used) / 2);
        }
        self.withheld != before
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_too_much_is_withheld_at_once_and_given_back_after_a_while() {
        let mut guard = Guard::default();
        let at = |used| Measured { used, may: 6400 };
        assert!(!guard.measure(SECOND, at(6400), 1 << 20));
        assert!(guard.measure(SECOND, at(6500), 1 << 20));
        assert_eq!(guard.withheld(), 100 + 100);
        // Room, but not enough to be worth it; then enough, but not for long.
        assert!(!guard.measure(2 * SECOND, at(6300), 1 << 20));
        assert!(!guard.measure(3 * SECOND, at(6100), 1 << 20));
        assert!(!guard.measure(7 * SECOND, at(6100), 1 << 20));
        assert!(!guard.measure(8 * SECOND, at(6300), 1 << 20), "the room is gone");
        assert!(!guard.measure(9 * SECOND, at(6100), 1 << 20));
        assert!(!guard.measure(13 * SECOND, at(6100), 1 << 20));
        assert!(guard.measure(14 * SECOND, at(6100), 1 << 20));
        assert_eq!(guard.withheld(), 200 - 150);
        assert!(!guard.measure(15 * SECOND, at(6000), 1 << 20));
        assert!(guard.measure(20 * SECOND, at(6000), 1 << 20));
        assert_eq!(guard.withheld(), 0);
        assert!(!guard.measure(90 * SECOND, at(10), 1 << 20), "nothing is left to give back");
    }

    #[test]
    fn the_floor_is_left() {
        let mut guard = Guard::default();
        let measured = Measured { used: u64::MAX, may: 1 };
        assert!(guard.measure(SECOND, measured, 500));
        assert_eq!(guard.withheld(), 500);
        assert!(!guard.measure(SECOND, measured, 500));
    }

    proptest! {
        /// A process whose other memory changes, and whose experts take what is not withheld.
        #[test]
        fn it_comes_to_rest_below_the_limit(others in prop::collection::vec(0u64..6000, 1..12)) {
            let (may, experts) = (10_000, 5_000);
            let (mut guard, mut now) = (Guard::default(), SECOND);
            for other in others {
                let mut changed = 0;
                let mut last = 0;
                for tick in 0..600 {
                    now += SECOND;
                    let used = other + experts - guard.withheld();
                    if guard.measure(now, Measured { used, may }, experts) {
                        changed += 1;
                        last = tick;
                    }
                }
                let used = other + experts - guard.withheld();
                prop_assert!(used <= may, "{used}");
                prop_assert!(guard.withheld() == 0 || may - used <= may / 10, "{guard:?}");
                prop_assert!(changed <= 12 && last < 300, "{changed} changes until {last}");
            }
        }
    }
}
