//! Large allocations on huge pages.
//!
//! Weights are read from end to end for every token. On pages of 4 KiB that costs an address
//! translation, and an end for the hardware's prefetcher, every 64 cache lines; Linux gives pages of
//! 2 MiB to whoever asks, but only where a mapping is that large, and the matrix of an expert is not.
//! So large blocks are cut from mappings of 64 MiB. What is free in them stays in memory for the next
//! block, unless that would be more than [`limit`] allows; with a low one, there are no huge pages. Owns: those mappings, and the count of
//! what is in memory of them. Does not own: budgets.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cpu;

/// Bytes from which a block is a large one: matrices of small experts too, since what the system's
/// allocator takes back of those that were given up, in many threads, it seldom gives back itself.
const LARGE: usize = 32 << 10;
/// Large blocks are whole numbers of these, and begin at one.
const GRAIN: usize = 4 << 10;
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of a mapping, unless one block needs more.
const REGION: usize = 64 << 20;
/// Least limit with which there are huge pages. A part of one that is returned counts for the
/// control group until the whole page is free, and of less memory that is much.
const HUGE_FROM: usize = 1 << 30;
/// Free bytes in memory that are worth the calls that return them to the system.
const WORTH: usize = 512 << 10;

/// The allocator of this library: the system's, but for large blocks.
pub struct HugePages;

static HEAP: Mutex<Heap> = Mutex::new(Heap::new());

fn heap() -> MutexGuard<'static, Heap> {
    // Nothing panics while it holds the lock: allocators must not unwind.
    HEAP.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_large(layout: Layout) -> bool {
    cfg!(target_os = "linux") && layout.size() >= LARGE && layout.align() <= GRAIN
}

fn large(layout: Layout) -> *mut u8 {
    heap().take(layout.size()).map_or(ptr::null_mut(), |at| at as *mut u8)
}

// SAFETY: blocks of `Heap` are disjoint, as large as asked for and aligned to `GRAIN`, and a layout
// always goes to the same of both allocators.
#[allow(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        #[cfg(test)]
        count::add(layout.size().cast_signed());
        if is_large(layout) {
            return large(layout);
        }
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        #[cfg(test)]
        count::add(-layout.size().cast_signed());
        if is_large(layout) {
            heap().give_back(block as usize, layout.size());
            return;
        }
        // SAFETY: the caller's promises; small blocks come from there.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        #[cfg(test)]
        count::add(layout.size().cast_signed());
        if is_large(layout) {
            let block = large(layout);
            if !block.is_null() {
                // SAFETY: the block is as long as the layout.
                unsafe { ptr::write_bytes(block, 0, layout.size()) }
            }
            return block;
        }
        // SAFETY: the caller's promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size is no overflow when aligned.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !is_large(layout) && !is_large(new) {
            #[cfg(test)]
            count::add(size.cast_signed() - layout.size().cast_signed());
            // SAFETY: the caller's promises; the block stays a small one.
            return unsafe { System.realloc(block, layout, size) };
        }
        // SAFETY: the caller promises that the size is not 0.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both blocks hold the bytes that are copied, and are disjoint.
            unsafe { ptr::copy_nonoverlapping(block, to, layout.size().min(size)) }
            // SAFETY: the caller's promises.
            unsafe { self.dealloc(block, layout) }
        }
        to
    }
}

/// Which parts of a mapping are in memory, or will be once the blocks there are written to.
enum Touched {
    /// A bit for each grain of a mapping of the usual size. Small itself, so that the heap never asks
    /// itself for memory.
    Grains(Box<[u64; REGION / GRAIN / BITS]>),
    /// All of one that was made for a single block.
    All,
}

/// Bits of a word.
const BITS: usize = u64::BITS as usize;
/// Words of the grains of a huge page.
const HUGE_WORDS: usize = HUGE_PAGE / GRAIN / BITS;

/// A mapping.
struct Region {
    length: usize,
    touched: Touched,
    is_huge: bool,
}

impl Region {
    fn new(length: usize, is_huge: bool) -> Self {
        let is_usual = length == REGION;
        let grains = || Touched::Grains(Box::new([0; REGION / GRAIN / BITS]));
        Self { length, touched: if is_usual { grains() } else { Touched::All }, is_huge }
    }

    /// Bytes in memory.
    fn bytes(&self) -> usize {
        match &self.touched {
            Touched::Grains(words) => words.iter().map(|w| w.count_ones() as usize * GRAIN).sum(),
            Touched::All => self.length,
        }
    }

    /// Notes that the bytes from `from` to `end`, counted from the start, are used now, or that
    /// their pages were returned. Returns how many bytes more, or less, are in memory.
    fn set(&mut self, from: usize, end: usize, is_used: bool) -> usize {
        let Touched::Grains(words) = &mut self.touched else { return 0 };
        let mut changed = 0;
        let mut set = |word: &mut u64, value: u64| {
            changed += (*word ^ value).count_ones() as usize * GRAIN;
            *word = value;
        };
        if is_used && self.is_huge {
            // The first touch of a huge page brings in all of it.
            for huge in from / HUGE_PAGE..end.div_ceil(HUGE_PAGE) {
                let words = &mut words[huge * HUGE_WORDS..][..HUGE_WORDS];
                if words.iter().all(|&word| word == 0) {
                    for word in words {
                        set(word, u64::MAX);
                    }
                }
            }
        }
        for grain in from / GRAIN..end / GRAIN {
            let (word, bit) = (&mut words[grain / BITS], 1 << (grain % BITS));
            set(word, if is_used { *word | bit } else { *word & !bit });
        }
        changed
    }
}

/// Mappings and the free parts of them, by address.
struct Heap {
    /// By start.
    regions: BTreeMap<usize, Region>,
    /// Start -> length; no two of one region touch.
    free: BTreeMap<usize, usize>,
    /// Bytes of blocks.
    in_use: usize,
    /// Bytes of mappings that are in memory: blocks, and what was not returned since it was one.
    in_memory: usize,
    /// Most of them, as long as there are free ones among them.
    most: usize,
}

impl Heap {
    const fn new() -> Self {
        Self {
            regions: BTreeMap::new(),
            free: BTreeMap::new(),
            in_use: 0,
            in_memory: 0,
            most: usize::MAX,
        }
    }

    /// A block of at least `size` bytes; none if the system has no more.
    fn take(&mut self, size: usize) -> Option<usize> {
        let size = size.checked_next_multiple_of(GRAIN)?;
        let fitting = self.free.iter().find(|(_, length)| **length >= size);
        let (start, length) = match fitting.map(|(&start, &length)| (start, length)) {
            Some(found) => found,
            None => self.add_region(size)?,
        };
        self.free.remove(&start);
        if length > size {
            self.free.insert(start + size, length - size);
        }
        self.in_use += size;
        if let Some((&region_start, region)) = self.regions.range_mut(..=start).next_back() {
            let from = start - region_start;
            self.in_memory += region.set(from, from + size, true);
        }
        if self.in_memory > self.most && self.in_memory - self.in_use >= WORTH {
            self.release();
        }
        Some(start)
    }

    fn give_back(&mut self, start: usize, size: usize) {
        let (mut start, mut length) = (start, size.next_multiple_of(GRAIN));
        let region = self.regions.range(..=start).next_back();
        let Some((&region, &Region { length: region_length, .. })) = region else {
            // Not one of our blocks. An allocator must not unwind.
            std::process::abort();
        };
        self.in_use -= length;
        if let Some((&before, &before_length)) = self.free.range(region..start).next_back()
            && before + before_length == start
        {
            self.free.remove(&before);
            (start, length) = (before, before_length + length);
        }
        if start + length < region + region_length
            && let Some(after) = self.free.remove(&(start + length))
        {
            length += after;
        }
        self.free.insert(start, length);
        if length == region_length {
            self.unmap_spare(region);
        }
    }

    /// Unmaps the region that has become free, unless it is of the usual size and the only one:
    /// what a step allocates and frees stays mapped for the next.
    fn unmap_spare(&mut self, region: usize) {
        let length = self.free[&region];
        let is_other = |(start, length): (&usize, &usize)| {
            *start != region && self.regions.get(start).is_some_and(|other| other.length == *length)
        };
        if length > REGION || self.free.iter().any(is_other) {
            self.free.remove(&region);
            self.in_memory -= self.regions.remove(&region).map_or(0, |region| region.bytes());
            unmap(region, length);
        }
    }

    /// Returns to the system the pages that no block is in; they stay mapped, and are zeros when
    /// they are next used.
    fn release(&mut self) {
        let page = usize::try_from(cpu::page_bytes()).unwrap_or(GRAIN);
        for (&start, &length) in &self.free {
            let (first, end) = (start.next_multiple_of(page), (start + length) / page * page);
            let region = self.regions.range_mut(..=start).next_back();
            if first < end
                && let Some((&region_start, region)) = region
            {
                let dropped = region.set(first - region_start, end - region_start, false);
                if dropped > 0 || matches!(region.touched, Touched::All) {
                    drop_pages(first, end - first);
                }
                self.in_memory -= dropped;
            }
        }
    }

    /// Maps a region for a block of `size` bytes; returns it as the free block that it is.
    fn add_region(&mut self, size: usize) -> Option<(usize, usize)> {
        let length = size.max(REGION).checked_next_multiple_of(HUGE_PAGE)?;
        let start = map(length)?;
        let is_huge = self.most >= HUGE_FROM;
        if is_huge {
            advise_huge(start, length, true);
        }
        let region = Region::new(length, is_huge);
        self.in_memory += region.bytes();
        self.regions.insert(start, region);
        self.free.insert(start, length);
        Some((start, length))
    }
}

/// Maps `length` bytes, a multiple of a huge page, from an address that is one too.
#[allow(unsafe_code, reason = "the standard library maps no memory")]
fn map(length: usize) -> Option<usize> {
    let mapped = length.checked_add(HUGE_PAGE)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, where nothing else is.
    let at = unsafe { libc::mmap(ptr::null_mut(), mapped, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    let start = (at as usize).next_multiple_of(HUGE_PAGE);
    let (before, after) = (start - at as usize, at as usize + mapped - (start + length));
    for (at, length) in [(at as usize, before), (start + length, after)] {
        if length > 0 {
            unmap(at, length);
        }
    }
    Some(start)
}

/// Asks for huge pages, or says that there are to be no more.
#[allow(unsafe_code, reason = "the standard library advises of no memory")]
#[cfg_attr(not(target_os = "linux"), allow(unused_variables, reason = "others have no such call"))]
fn advise_huge(start: usize, length: usize, is_wanted: bool) {
    #[cfg(target_os = "linux")]
    {
        let advice = if is_wanted { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: of our mapping. A system without huge pages says no, which changes nothing.
        unsafe {
            libc::madvise(start as *mut libc::c_void, length, advice);
        }
    }
}

#[allow(unsafe_code, reason = "the standard library maps no memory")]
fn unmap(start: usize, length: usize) {
    // SAFETY: the range is ours and no block in it is in use.
    unsafe {
        libc::munmap(start as *mut libc::c_void, length);
    }
}

#[allow(unsafe_code, reason = "the standard library returns no memory")]
fn drop_pages(start: usize, length: usize) {
    // SAFETY: the range is ours and no block in it is in use. Where the system will not, it stays.
    unsafe {
        libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED);
    }
}

/// Returns to the system what is free: the pages of large blocks, and of small ones what its own
/// allocator can.
#[allow(unsafe_code, reason = "the standard library returns no memory")]
pub fn release() {
    heap().release();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: of memory that is not in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes of large blocks that are in memory, and of free ones that were not returned.
pub fn in_memory() -> u64 {
    heap().in_memory as u64
}

/// From now on, free memory is returned to the system before large blocks and it take more than
/// `bytes`. Blocks alone may.
pub fn limit(bytes: u64) {
    let mut heap = heap();
    heap.most = usize::try_from(bytes).unwrap_or(usize::MAX);
    if heap.most < HUGE_FROM {
        for (&start, region) in heap.regions.iter_mut().filter(|(_, region)| region.is_huge) {
            advise_huge(start, region.length, false);
            region.is_huge = false;
        }
    }
}

/// What one thread has allocated, for tests that compare it with what was expected.
#[cfg(test)]
pub mod count {
    use std::cell::Cell;

    thread_local! {
        static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
    }

    pub(super) fn add(bytes: isize) {
        // Threads that end still give back memory.
        let _ = BYTES.try_with(|count| {
            let (now, most) = count.get();
            count.set((now + bytes, most.max(now + bytes)));
        });
    }

    /// Most bytes that this thread had at a time while `f` ran, beside those it had before and has
    /// kept since.
    pub fn passing(f: impl FnOnce()) -> usize {
        let before = BYTES.get().0;
        BYTES.set((before, before));
        f();
        let (after, most) = BYTES.get();
        usize::try_from(most - before.max(after)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn blocks_are_disjoint_and_all_memory_comes_back() {
        let mut heap = Heap::new();
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut state = 7u64;
        for _ in 0..4000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (state >> 33) as usize;
            if taken.len() > 40 || (!taken.is_empty() && random.is_multiple_of(3)) {
                let (start, size) = taken.swap_remove(random % taken.len());
                heap.give_back(start, size);
                continue;
            }
            let size = LARGE + random % (5 << 20);
            let start = heap.take(size).expect("there is memory");
            assert!(start.is_multiple_of(GRAIN));
            assert!(taken.iter().all(|&(other, n)| start + size <= other || other + n <= start));
            taken.push((start, size));
        }
        assert!(heap.regions.len() <= 8, "{} regions for 200 MB", heap.regions.len());
        for (start, size) in taken {
            heap.give_back(start, size);
        }
        // One is kept.
        assert_eq!((heap.regions.len(), heap.free.len(), heap.in_use), (1, 1, 0));
        assert_eq!(heap.free.values().sum::<usize>(), REGION);
        heap.release();
        assert_eq!(heap.in_memory, 0);
    }

    #[test]
    fn a_block_may_be_larger_than_a_region_and_what_cannot_be_is_refused() {
        let mut heap = Heap::new();
        let start = heap.take(REGION + 1).expect("there is memory");
        assert!(start.is_multiple_of(HUGE_PAGE));
        heap.give_back(start, REGION + 1);
        assert!(heap.regions.is_empty());
        assert_eq!(heap.take(usize::MAX), None);
        assert_eq!(heap.take(1 << 60), None);
        assert!(heap.regions.is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code, reason = "blocks are raw memory")]
    fn what_is_released_is_gone_and_what_is_in_use_stays() {
        let mut heap = Heap::new();
        let size = 4 << 20;
        let blocks: Vec<usize> = (0..16).map(|_| heap.take(size).expect("memory")).collect();
        for &block in &blocks {
            // SAFETY: the block is ours.
            unsafe { ptr::write_bytes(block as *mut u8, 7, size) }
        }
        for &block in &blocks[1..15] {
            heap.give_back(block, size);
        }
        heap.release();
        for (i, &block) in blocks.iter().enumerate() {
            let byte = if (1..15).contains(&i) { 0 } else { 7 };
            // SAFETY: it is mapped, and was written.
            let bytes = unsafe { std::slice::from_raw_parts(block as *const u8, size) };
            assert!(bytes.iter().all(|&b| b == byte), "block {i}");
        }
    }

    /// Blocks of two sizes that come and go leave holes, as experts and what steps take do.
    #[test]
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code, reason = "blocks are raw memory")]
    fn what_is_free_stays_in_memory_only_within_the_limit() {
        let in_memory = |heap: &Heap| -> usize {
            let page = usize::try_from(cpu::page_bytes()).expect("a size");
            let resident = |(&start, region): (&usize, &Region)| {
                let mut pages = vec![0u8; region.length / page];
                // SAFETY: the mapping is ours, and there is a byte for each of its pages.
                let told = unsafe {
                    libc::mincore(start as *mut libc::c_void, region.length, pages.as_mut_ptr())
                };
                assert_eq!(told, 0);
                pages.iter().filter(|&&page| page & 1 != 0).count() * page
            };
            heap.regions.iter().map(resident).sum()
        };
        for limit in [usize::MAX, 40 << 20] {
            let mut heap = Heap { most: limit, ..Heap::new() };
            for _ in 0..2 {
                // The system makes huge pages of small ones when it likes.
                let (start, length) = heap.add_region(REGION).expect("there is memory");
                advise_huge(start, length, false);
            }
            let mut taken: VecDeque<(usize, usize)> = VecDeque::new();
            let (mut state, mut most, mut most_used) = (7u64, 0, 0);
            for i in 0..2000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let size = [LARGE, 300 << 10, 1 << 20][(state >> 33) as usize % 3];
                while heap.in_use + size > 34 << 20 {
                    let at = (state >> 40) as usize % taken.len();
                    let (start, size) = taken.remove(at).expect("one of them");
                    heap.give_back(start, size);
                }
                let start = heap.take(size).expect("there is memory");
                // SAFETY: the block is ours.
                unsafe { ptr::write_bytes(start as *mut u8, 7, size) }
                taken.push_back((start, size));
                most_used = most_used.max(heap.in_use);
                if i % 50 == 0 {
                    most = most.max(in_memory(&heap));
                    assert!(in_memory(&heap) <= heap.in_memory, "{i}: more than is counted");
                }
            }
            assert!(most_used > 33 << 20, "{most_used}");
            if limit == usize::MAX {
                assert!(most > 42 << 20, "{most}: no holes, so that this shows nothing");
            } else {
                assert!(most <= limit && most >= most_used, "{most}");
            }
            for (start, size) in taken {
                heap.give_back(start, size);
            }
        }
    }

    #[test]
    fn vectors_keep_their_values_as_they_cross_the_limit() {
        let mut values: Vec<u64> = Vec::new();
        for i in 0..200_000 {
            values.push(i);
        }
        values.truncate(100);
        values.shrink_to_fit();
        assert!(values.iter().copied().eq(0..100));
        let zeros = vec![0u8; 3 * LARGE];
        assert!(zeros.iter().all(|&b| b == 0));
    }
}
