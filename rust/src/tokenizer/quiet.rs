//! Panics of a library over hostile input, caught without their text on the user's terminal.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run`; `None` if it panics. A panic anywhere else is reported as ever.
pub fn catch_quietly<T>(run: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run)).ok();
    QUIET.set(outer);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_silence_ends_with_it() {
        assert_eq!(catch_quietly(|| 1), Some(1));
        assert_eq!(catch_quietly(|| -> u8 { panic!("hostile") }), None);
        assert!(!QUIET.get());
        let nested =
            catch_quietly(|| catch_quietly(|| -> u8 { panic!("inner") }).is_none() && QUIET.get());
        assert_eq!(nested, Some(true));
    }
}
