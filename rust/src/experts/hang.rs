//! Drives that hang: a step does not wait for ever for an expert.
//!
//! A thread that waits in the system for a drive cannot be called back. The step goes on without it:
//! what hangs in a mirror is read anew from elsewhere, anything else fails those who need it, as long as
//! it hangs. Owns: when waiting is over. Does not own: threads (`reader`), which call hangs (`store`).

use std::time::{Duration, Instant};

use super::ExpertStore;
use super::dispatch::{Needs, Share};
use crate::error::Error;
use crate::log::say;
use crate::store::calls::Call;

/// Longest time that a read of an expert may be waited for where nobody says otherwise. The system
/// itself gives a drive 30 s for a command, and then tries again or fails the read, which says more.
pub const READ_LIMIT: Duration = Duration::from_secs(60);
/// After this part of the limit it is told what is waited for.
const TELL_PART: u32 = 4;

/// Why a step that waits for `call` fails.
fn overdue(call: &Call) -> Error {
    let what = format!("the drive has not answered for {:.0} s", call.waited().as_secs_f64());
    Error::io(&call.file, std::io::Error::new(std::io::ErrorKind::TimedOut, what))
}

impl ExpertStore {
    /// Waits for a read of an expert for so long at most.
    pub fn set_read_limit(&mut self, limit: Duration) {
        self.read_limit = limit;
    }

    /// Looks after reads that hang.
    pub(super) fn look(&mut self, needs: &mut Needs) {
        let limit = self.read_limit;
        let asked = needs.missing.keys().filter(|index| self.pending.contains(index));
        for index in asked.copied().collect::<Vec<usize>>() {
            let Some(call) = self.calls.longest(index) else { continue };
            self.tell(&call);
            if call.waited() <= limit {
                continue;
            }
            let error = overdue(&call);
            if !self.catalog.leave_mirror(&call.file, &error) {
                // It may come after all, for others.
                needs.failure = Some(error);
            } else if self.lose(index) {
                needs.asked -= 1;
                needs.absent.push_back(index);
            }
        }
        // What was asked for may wait until a thread is free, or for the memory of others.
        if needs.began.elapsed() > limit / TELL_PART
            && let Some((index, call)) = self.calls.stalled(limit)
        {
            let error = overdue(&call);
            if self.catalog.leave_mirror(&call.file, &error) {
                self.lose(index);
            } else {
                needs.failure = Some(error);
            }
        }
    }

    /// Gives up a read that hangs, so that it can be asked for again. False if it has just ended.
    fn lose(&mut self, index: usize) -> bool {
        self.calls.forget(index);
        // Its memory is taken until the thread comes back.
        self.reader.lose(index) && self.pending.remove(&index)
    }

    /// Tells what is waited for, once for all that hangs at the same time.
    fn tell(&mut self, call: &Call) {
        let is_due = self.told_of_waiting.is_none_or(|at| at.elapsed() > self.read_limit);
        if is_due && call.waited() > self.read_limit / TELL_PART {
            self.told_of_waiting = Some(Instant::now());
            say(format_args!("notice: {}", call.told()));
        }
    }

    /// Ends the requests for experts of a step that has failed, as far as they are not being read.
    pub(super) fn leave(&mut self, missing: &Share) {
        for &index in missing.keys() {
            if self.pending.contains(&index) && self.reader.withdraw_one(index) {
                self.forget_request(index);
            }
        }
    }
}
