//! What is withheld from experts of their memory, by what the process is measured to take.
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

/// Experts, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// In memory.
    pub have: u64,
    /// Needed by any step.
    pub floor: u64,
    /// Most there could be if nothing were withheld.
    pub most: u64,
}

/// What is withheld from experts.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    cap: u64,
    /// Since when there has been room.
    calm_since: Option<Duration>,
}

impl Default for Guard {
    fn default() -> Self {
        Self { cap: u64::MAX, calm_since: None }
    }
}

impl Guard {
    /// Most bytes of experts at present; the largest number where nothing is withheld.
    pub fn cap(&self) -> u64 {
        self.cap
    }

    /// Allows `cap` bytes of experts until there has been room for more.
    pub fn lower(&mut self, cap: u64) {
        *self = Self { cap, calm_since: None };
    }

    /// Takes a measurement at the time `now`; returns whether [`Self::cap`] is another now.
    pub fn measure(&mut self, now: Duration, measured: Measured, held: Held) -> bool {
        let before = self.cap;
        let Measured { used, may } = measured;
        if used > may {
            let less = held.have.saturating_sub(used - may + may / MORE).max(held.floor);
            self.lower(before.min(less));
        } else if before >= held.most || may - used < may / ROOM {
            self.calm_since = None;
        } else if now.saturating_sub(*self.calm_since.get_or_insert(now)) >= CALM {
            // Half, so that it comes to rest below the limit.
            let more = before.saturating_add((may - used) / 2);
            self.lower(if more < held.most { more } else { u64::MAX });
        }
        self.cap != before
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
        let mut at = |second: u32, used, have| {
            let held = Held { have, floor: 100, most: 5000 };
            let changed = guard.measure(second * SECOND, Measured { used, may: 6400 }, held);
            (changed, guard.cap())
        };
        assert_eq!(at(1, 6400, 4000), (false, u64::MAX));
        assert_eq!(at(2, 6500, 4000), (true, 3800), "of what there is, not of what might be");
        // Room, but not enough to be worth it; then enough, but not for long.
        assert_eq!(at(3, 6300, 3800), (false, 3800));
        assert_eq!(at(4, 6000, 3800), (false, 3800));
        assert_eq!(at(8, 6000, 3800), (false, 3800));
        assert_eq!(at(9, 6300, 3800), (false, 3800), "the room is gone");
        assert_eq!(at(10, 6000, 3800), (false, 3800));
        assert_eq!(at(14, 6000, 3800), (false, 3800));
        assert_eq!(at(15, 6000, 3800), (true, 4000));
        assert_eq!(at(16, 4000, 4000), (false, 4000));
        assert_eq!(at(21, 4000, 4000), (true, u64::MAX), "that is all again");
        assert_eq!(at(90, 10, 4000), (false, u64::MAX));
        assert_eq!(at(91, 99_999, 4000), (true, 100), "the floor is left");
        assert_eq!(at(92, 99_999, 100), (false, 100));
    }

    proptest! {
        /// A process whose other memory changes, and whose experts take all they may.
        #[test]
        fn it_comes_to_rest_below_the_limit(others in prop::collection::vec(0u64..6000, 1..12)) {
            let (may, most) = (10_000, 5_000);
            let (mut guard, mut now) = (Guard::default(), SECOND);
            for other in others {
                let (mut changed, mut last) = (0, 0);
                for tick in 0..600 {
                    now += SECOND;
                    let have = guard.cap().min(most);
                    let held = Held { have, floor: 10, most };
                    if guard.measure(now, Measured { used: other + have, may }, held) {
                        changed += 1;
                        last = tick;
                    }
                }
                let used = other + guard.cap().min(most);
                prop_assert!(used <= may, "{used}");
                prop_assert!(guard.cap() >= most || may - used <= may / 10, "{guard:?}");
                prop_assert!(changed <= 12 && last < 300, "{changed} changes until {last}");
            }
        }
    }
}
