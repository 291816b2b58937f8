//! Both readers of the wire on any bytes in any split.
#![no_main]

use colibri::mux::frame::{
    Incoming, OPTION_NAMES, READY, Record, RecordReader, RequestReader, write_record, write_submit,
};
use colibri_fuzz::{Counting, pieces};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static MEMORY: Counting = Counting::new();

/// A reader may hold this many times what it was fed, ...
const MAX_FACTOR: usize = 32;
/// ... and this many bytes besides: a header line and its parts.
const MAX_FIXED: usize = 256 << 10;

fuzz_target!(|data: &[u8]| {
    let pieces = pieces(data);
    check_requests(data, &pieces);
    check_records(data, &pieces);
});

fn read_requests(pieces: &[&[u8]], mut take: impl FnMut(Incoming)) {
    let mut reader = RequestReader::new(&OPTION_NAMES, 4);
    for piece in pieces {
        reader.feed(piece);
        while let Some(incoming) = reader.next() {
            take(incoming);
        }
    }
    reader.finish();
    while let Some(incoming) = reader.next() {
        take(incoming);
    }
}

fn check_requests(data: &[u8], pieces: &[&[u8]]) {
    let mut whole = Vec::new();
    read_requests(&[data], |incoming| whole.push(incoming));
    let mut split = Vec::with_capacity(whole.len());
    read_requests(pieces, |incoming| split.push(incoming));
    assert_eq!(whole, split);
    check_memory(data, || read_requests(pieces, drop));
    for incoming in whole {
        let Incoming::Submit(submit) = &incoming else { continue };
        let mut frame = Vec::new();
        if let Err(error) = write_submit(&mut frame, submit) {
            // The same numbers may be spelt at greater length.
            assert!(error.to_string().contains("options are too long"), "{error}: {submit:?}");
            continue;
        }
        let mut again = Vec::new();
        read_requests(&[&frame], |incoming| again.push(incoming));
        assert_eq!(again, [incoming]);
    }
}

fn read_records(pieces: &[&[u8]], mut take: impl FnMut(Record)) {
    let mut reader = RecordReader::new();
    let mut fed = 0;
    for piece in pieces {
        reader.feed(piece);
        fed += piece.len();
        while let Some(record) = reader.next() {
            take(record);
        }
        assert!(reader.buffered() <= fed);
    }
}

fn check_records(data: &[u8], pieces: &[&[u8]]) {
    let ready = std::iter::once(READY).chain(pieces.iter().copied()).collect::<Vec<_>>();
    for (data, pieces) in [(data.to_vec(), pieces), ([READY, data].concat(), &ready)] {
        let mut whole = Vec::new();
        read_records(&[&data], |record| whole.push(record));
        let mut split = Vec::with_capacity(whole.len());
        read_records(pieces, |record| split.push(record));
        assert_eq!(whole, split);
        check_memory(&data, || read_records(pieces, drop));
        for record in &whole {
            check_written(record);
        }
    }
}

/// What is written reads as what it says: to write that again changes nothing.
fn check_written(record: &Record) {
    let mut written = READY.to_vec();
    write_record(&mut written, record);
    let mut read = Vec::new();
    read_records(&[&written], |record| read.push(record));
    let mut again = Vec::new();
    read.iter().for_each(|record| write_record(&mut again, record));
    if *record == Record::Ready {
        // The second one is a line like any other.
        assert_eq!(read, [Record::Ready, Record::Unknown(READY[..READY.len() - 1].to_vec())]);
    } else if written.ends_with(b"\r\n") && !matches!(record, Record::Data { .. }) {
        // A line that ends in several carriage returns loses one each time.
    } else {
        assert!(again == written, "{} became {}", written.escape_ascii(), again.escape_ascii());
        let kept = matches!(record, Record::Malformed { .. }) || read.len() == 2;
        assert!(kept, "{record:?} became {read:?}");
    }
}

fn check_memory(data: &[u8], read: impl FnOnce()) {
    MEMORY.bounded(data.len() * MAX_FACTOR + MAX_FIXED, read);
}
