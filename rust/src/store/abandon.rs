//! Reads that may turn out needless while they are under way.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Bytes between two looks at whether a read is still wanted.
const PIECE_BYTES: usize = 512 << 10;

thread_local! {
    /// Set by others when what this thread reads is not wanted any more.
    static NEEDLESS: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs `read`; what it reads of a catalogue ends with [`Error::Interrupted`] once `needless` is set.
pub fn abandonable<T>(needless: &Arc<AtomicBool>, read: impl FnOnce() -> T) -> T {
    NEEDLESS.set(Some(Arc::clone(needless)));
    let result = read();
    NEEDLESS.set(None);
    result
}

/// Most bytes to read at once.
pub(super) fn piece_bytes() -> usize {
    NEEDLESS.with_borrow(|needless| if needless.is_some() { PIECE_BYTES } else { usize::MAX })
}

/// # Errors
/// [`Error::Interrupted`] if what this thread reads is not wanted any more.
pub(super) fn check() -> Result<()> {
    NEEDLESS.with_borrow(|needless| match needless {
        Some(needless) if needless.load(Ordering::Relaxed) => Err(Error::Interrupted),
        _ => Ok(()),
    })
}
