//! Properties that hold across readers and writers.

use super::*;
use proptest::prelude::*;

fn requests(chunks: &[&[u8]]) -> Vec<Incoming> {
    let mut reader = RequestReader::new(&OPTION_NAMES, 4);
    let mut read = Vec::new();
    for chunk in chunks {
        reader.feed(chunk);
        read.extend(std::iter::from_fn(|| reader.next()));
    }
    reader.finish();
    read.extend(std::iter::from_fn(|| reader.next()));
    read
}

fn records(chunks: &[&[u8]]) -> Vec<Record> {
    let mut reader = RecordReader::new();
    let mut read = Vec::new();
    for chunk in chunks {
        reader.feed(chunk);
        read.extend(std::iter::from_fn(|| reader.next()));
    }
    read
}

/// The pieces of `bytes` between cuts, which are taken modulo its length.
fn split<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let mut from = 0;
    let mut pieces = Vec::new();
    for cut in cuts {
        pieces.push(&bytes[from..cut]);
        from = cut;
    }
    pieces.push(&bytes[from..]);
    pieces
}

/// Quarters survive any number of decimals from two up.
fn quarters() -> impl Strategy<Value = f64> {
    (0_u32..4000).prop_map(|n| f64::from(n) * 0.25)
}

/// Numbers that one decimal carries exactly.
fn halves() -> impl Strategy<Value = f64> {
    (0_u32..4000).prop_map(|n| f64::from(n) * 0.5)
}

fn turn() -> impl Strategy<Value = TurnRecord> {
    let stat = (any::<u64>(), quarters(), halves(), quarters()).prop_map(
        |(emitted, tok_s, hit_pct, rss_gb)| StatRecord { emitted, tok_s, hit_pct, rss_gb },
    );
    (stat, any::<u64>(), any::<bool>()).prop_map(|(stat, prompt_tokens, length_limited)| {
        TurnRecord { stat, prompt_tokens, length_limited }
    })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        Just(b"CANCEL 7\n".to_vec()),
        Just(b"\x01\x01READY\x01\x01\n".to_vec()),
        Just(b"\r\nDONE 1 STAT 1 1 1 1 1 1\r\n".to_vec()),
        Just(b"\0\xff\xfe".to_vec()),
    ]
}

fn more_perf() -> impl Strategy<Value = MorePerf> {
    let drive = any::<(u64, u64, u64, bool)>().prop_map(|(number, bytes, rate, is_dropped)| {
        DriveRecord { number, bytes, rate, is_dropped }
    });
    let drives = prop::collection::vec(drive, 0..4);
    let told = (any::<[Option<u64>; 2]>(), any::<Option<(u64, u64)>>(), drives);
    (quarters(), quarters(), any::<[u64; 4]>(), told).prop_map(
        |(ffn_s, reading_s, n, ([uses_vram, experts_ram], drafts, drives))| MorePerf {
            ffn_s,
            reading_s,
            uses_ahead: n[0],
            uses_cached: n[1],
            uses_missed: n[2],
            bytes_read: n[3],
            uses_vram,
            experts_ram,
            drafts,
            drives,
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    let name = "[A-Za-z0-9()@.]{1,8}( [A-Za-z0-9()@.]{1,8}){0,2}";
    let map = (0_usize..5, 0_usize..9);
    prop_oneof![
        turn().prop_map(|turn| Record::Stat(turn.stat)),
        turn().prop_map(Record::TurnStat),
        (any::<u64>(), halves(), halves(), any::<u64>(), halves(), name, name).prop_map(
            |(cores, ram_total_gb, ram_avail_gb, ngpu, vram_total_gb, cpu_name, gpu_name)| {
                Record::HwInfo(HwInfoRecord {
                    cores,
                    ram_total_gb,
                    ram_avail_gb,
                    ngpu,
                    vram_total_gb,
                    cpu_name,
                    gpu_name,
                })
            }
        ),
        prop::collection::vec((quarters(), quarters(), any::<u64>()), 0..4).prop_map(|gpus| {
            let gpu = |(used_gb, total_gb, experts)| GpuRecord { used_gb, total_gb, experts };
            Record::Gpus(gpus.into_iter().map(gpu).collect())
        }),
        (any::<[u64; 3]>(), quarters(), quarters()).prop_map(
            |([vram, ram, disk], vram_gb, ram_gb)| {
                Record::Tiers(TiersRecord { vram, ram, disk, vram_gb, ram_gb })
            }
        ),
        (map.clone(), any::<[u8; 40]>()).prop_map(|((rows, cols), bytes)| Record::Emap {
            rows,
            cols,
            map: bytes[..rows * cols].to_vec()
        }),
        (map, any::<[u8; 40]>()).prop_map(|((rows, cols), bytes)| Record::Hits {
            rows,
            cols,
            hits: bytes[..(rows * cols).div_ceil(8)].to_vec()
        }),
        prop::collection::vec(("[a-z]{1,6}", ".{0,8}"), 0..4).prop_map(Record::Caps),
        (any::<u64>(), any::<u64>())
            .prop_map(|(id, prompt_tokens)| Record::Accept { id, prompt_tokens }),
        any::<[u64; 3]>().prop_map(|[id, done, total]| Record::Prefill { id, done, total }),
        (any::<u64>(), payload()).prop_map(|(id, data)| Record::Data { id, data }),
        (any::<u64>(), prop::collection::vec((quarters(), payload()), 0..4)).prop_map(
            |(id, tokens)| {
                let token = |(logprob, bytes): (f64, _)| TopkToken { logprob: -logprob, bytes };
                Record::Topk { id, tokens: tokens.into_iter().map(token).collect() }
            }
        ),
        (any::<u64>(), any::<u64>(), 0_u64..3, any::<i32>()).prop_map(
            |(layer, expert, old_tier, gpu)| Record::Repin {
                layer,
                expert,
                old_tier,
                gpu: gpu.into()
            }
        ),
        (any::<u64>(), prop::array::uniform7(quarters()), prop::option::of(more_perf())).prop_map(
            |(id, s, more)| Record::Perf {
                id,
                times: PerfRecord {
                    wall_s: s[0],
                    expert_disk_s: s[1],
                    expert_wait_s: s[2],
                    expert_matmul_s: s[3],
                    attention_s: s[4],
                    kv_decompress_s: s[5],
                    head_s: s[6],
                    more,
                }
            }
        ),
        (quarters(), quarters(), any::<[u16; 3]>()).prop_map(|(a, b, n)| Record::Prof(
            ProfRecord {
                wall_s: a,
                prompt_tokens: u64::from(n[0]),
                emitted: u64::from(n[1]),
                attention_s: b,
                forwards: u64::from(n[2]),
                ..ProfRecord::default()
            }
        )),
        prop::collection::vec(quarters(), 0..5).prop_map(Record::Entropy),
        (any::<u64>(), turn()).prop_map(|(id, turn)| Record::Done { id, turn }),
        (any::<u64>(), "[A-Z_]{1,16}", prop::collection::vec(".{1,8}", 0..3))
            .prop_map(|(id, code, detail)| Record::Error { id, code, detail }),
        "[a-z]{0,8}( [a-z]{1,4})?".prop_map(|line| Record::Unknown(line.into_bytes())),
    ]
}

fn options() -> impl Strategy<Value = SubmitOptions> {
    let penalty = || prop::option::of(-2.0_f64..=2.0);
    let sampling = (
        prop::option::of(any::<u64>()),
        prop::option::of(any::<u32>()),
        prop::option::of(0.0_f64..=1.0),
        prop::option::of(0_u8..=20),
        prop::collection::vec(any::<u32>(), 0..4),
        any::<bool>(),
    );
    let shaping = (
        penalty(),
        penalty(),
        prop::option::of(0.01_f64..=10.0),
        prop::collection::vec((any::<u32>(), -100.0_f64..=100.0), 0..3),
        prop::option::of("[^\0]{0,20}"),
    );
    (sampling, shaping).prop_map(
        |(
            (seed, top_k, min_p, topk, stop_ids, ignore_eos),
            (presence, frequency, repetition, bias, grammar),
        )| SubmitOptions {
            seed,
            top_k,
            min_p,
            topk,
            stop_ids,
            ignore_eos,
            presence,
            frequency,
            repetition,
            bias,
            grammar,
        },
    )
}

fn submit() -> impl Strategy<Value = Submit> {
    (1_u64.., 0_usize..4, 1..=i32::MAX as u32, 0.0_f64..=2.0, 1e-9_f64..=1.0, options(), payload())
        .prop_map(|(id, slot, max_tokens, temperature, top_p, options, mut payload)| {
            payload.retain(|byte| *byte != 0);
            Submit { id, slot, max_tokens, temperature, top_p, options, payload }
        })
}

/// Bytes near enough to the wire to reach every branch.
fn wire_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(&b"SUBMIT "[..]),
        Just(&b"STOP 1\n"[..]),
        Just(&b"CANCEL "[..]),
        Just(&b"DATA "[..]),
        Just(&b"DATA 1 3\nabc\n"[..]),
        Just(&b"DONE 1 STAT "[..]),
        Just(&b"EMAP 1 2 "[..]),
        Just(&b"TOPK 1 1 "[..]),
        Just(&b"GPUS 3 "[..]),
        Just(&b"1 0 3 8 0.5 1"[..]),
        Just(&b" grammar=2"[..]),
        Just(&b" 5"[..]),
        Just(&b"7 "[..]),
        Just(&b"0.5 "[..]),
        Just(&b"-"[..]),
        Just(&b"\r"[..]),
        Just(&b"\n"[..]),
        Just(&b"\x01\x01READY\x01\x01\n"[..]),
        Just(&b"\x01"[..]),
        Just(&b"\0\xff"[..]),
        Just(&b"99999999999999999999"[..]),
    ];
    let noise = prop::collection::vec(any::<u8>(), 0..6);
    let pieces = prop_oneof![4 => piece.prop_map(<[u8]>::to_vec), 1 => noise];
    prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn records_read_back_as_they_were_written(written in prop::collection::vec(record(), 0..8)) {
        let mut bytes = b"banner\n".to_vec();
        write_ready(&mut bytes);
        for record in &written {
            write_record(&mut bytes, record);
        }
        let read = records(&[&bytes]);
        prop_assert_eq!(&read[0], &Record::Ready);
        prop_assert_eq!(&read[1..], &written[..]);
    }

    #[test]
    fn submits_read_back_as_they_were_written(written in prop::collection::vec(submit(), 0..4)) {
        let mut bytes = Vec::new();
        for submit in &written {
            write_submit(&mut bytes, submit).unwrap();
        }
        let expected: Vec<Incoming> =
            written.into_iter().map(|submit| Incoming::Submit(Box::new(submit))).collect();
        prop_assert_eq!(requests(&[&bytes]), expected);
    }

    #[test]
    fn any_split_of_requests_parses_the_same(
        bytes in wire_like(),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        prop_assert_eq!(requests(&split(&bytes, &cuts)), requests(&[&bytes]));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(requests(&single), requests(&[&bytes]));
    }

    #[test]
    fn any_split_of_records_parses_the_same(
        bytes in wire_like(),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        ready in any::<bool>(),
    ) {
        let bytes = if ready { [READY, &bytes].concat() } else { bytes };
        prop_assert_eq!(records(&split(&bytes, &cuts)), records(&[&bytes]));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(records(&single), records(&[&bytes]));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = requests(&[&bytes]);
        let _ = records(&[&[READY, &bytes].concat()]);
    }
}

fn after_ready(bytes: &[u8]) -> Vec<Record> {
    records(&[READY, bytes]).split_off(1)
}

#[test]
fn everything_before_ready_is_skipped() {
    for banner in
        [&b""[..], b"== engine ==\nSTAT 1 1 1 1\n", b"\x01\x01READY\x01\x01x", b"\x01\x01\x01"]
    {
        for ready in [READY, b"\x01\x01READY\x01\x01\r\n"] {
            assert_eq!(records(&[banner, ready]), [Record::Ready]);
        }
    }
    let mut reader = RecordReader::new();
    reader.feed(&b"noise\n".repeat(1000));
    assert_eq!(reader.next(), None);
    assert!(reader.buffered() < READY.len());
}

#[test]
fn other_engines_formats_are_read() {
    let stat = StatRecord { emitted: 3, tok_s: 0.0, hit_pct: 99.123_456, rss_gb: 1.0 };
    let turn = TurnRecord { stat, prompt_tokens: 4, length_limited: true };
    let read = after_ready(b"DONE 1 STAT 3 -0.000 99.123456 1 4 1 future fields\r\n");
    assert_eq!(read, [Record::Done { id: 1, turn }]);
    let read = after_ready(b"DONE 1 STAT 3 -nan 99.123456 1\n");
    let turn = TurnRecord { stat, ..TurnRecord::default() };
    assert_eq!(read, [Record::Done { id: 1, turn }]);
    let read = after_ready(b"GPUDETAIL 1 0\n");
    assert_eq!(read, [Record::Unknown(b"GPUDETAIL 1 0".to_vec())]);
    let read = after_ready(b"HWINFO 8 64.0 32.0 0 0.0 Some  CPU @ 2 GHz|\n");
    let hw = HwInfoRecord {
        cores: 8,
        ram_total_gb: 64.0,
        ram_avail_gb: 32.0,
        cpu_name: "Some  CPU @ 2 GHz".to_owned(),
        ..HwInfoRecord::default()
    };
    assert_eq!(read, [Record::HwInfo(hw)]);
}

#[test]
fn malformed_records_are_reported_and_skipped() {
    for line in [
        "STAT",
        "STAT x 1 1 1",
        "HWINFO 1 2",
        "GPUS",
        "GPUS 2 1 1 1",
        "GPUS 99999999999",
        "TIERS 1 2 3",
        "EMAP 1 2 00",
        "EMAP 1 1 0x",
        "EMAP 18446744073709551615 2 00",
        "HITS 3 3 00",
        "ACCEPT 1",
        "PREFILL 1 2",
        "DATA",
        "DATA 1",
        "DATA 1 x",
        "TOPK 1 2 0.5 61",
        "TOPK 1 1 0.5 6",
        "REPIN 1 2 3",
        "PERF 1 0 0 0",
        "ENTROPY 1 x",
        "DONE 1 2",
        "DONE 1 STAT 1 1",
        "ERROR 1",
        "ERROR x NOT_FOUND",
    ] {
        let read = after_ready(format!("{line}\nACCEPT 1 2\n").as_bytes());
        assert_eq!(read.len(), 2, "{line}: {read:?}");
        assert!(
            matches!(&read[0], Record::Malformed { line: of, .. } if of == line.as_bytes()),
            "{line}: {read:?}"
        );
        assert_eq!(read[1], Record::Accept { id: 1, prompt_tokens: 2 });
    }
}

#[test]
fn fields_behind_the_times_of_perf_are_known_by_name() {
    let more = |rest: &str| match &after_ready(format!("PERF 1 1 0 0 0 0 0 0{rest}\n").as_bytes())[..]
    {
        [Record::Perf { times, .. }] => times.more.clone(),
        other => panic!("{other:?}"),
    };
    let told = MorePerf {
        ffn_s: 0.5,
        reading_s: 0.25,
        uses_ahead: 1,
        uses_cached: 2,
        uses_missed: 3,
        bytes_read: 4,
        uses_vram: None,
        experts_ram: None,
        drafts: None,
        drives: Vec::new(),
    };
    let fields = " reading=0.25 ffn=0.5 new=x ahead=1 cached=2 missed=3 read=4 0.5";
    assert_eq!(more(fields), Some(told.clone()));
    let on_device = MorePerf { uses_vram: Some(5), ..told.clone() };
    assert_eq!(more(&format!("{fields} vram=5")), Some(on_device));
    assert_eq!(more(&format!("{fields} vram=x")), None);
    let with_bytes = MorePerf { experts_ram: Some(9), ..told.clone() };
    assert_eq!(more(&format!(" experts_ram=9{fields}")), Some(with_bytes));
    let with_drafts = MorePerf { drafts: Some((8, 5)), ..told.clone() };
    assert_eq!(more(&format!("{fields} drafts=8:5")), Some(with_drafts));
    for wrong in ["8", "8:", ":5", "8:5:1", "8:-5"] {
        assert_eq!(more(&format!("{fields} drafts={wrong}")), Some(told.clone()), "{wrong}");
    }
    let drives = vec![
        DriveRecord { number: 0, bytes: 5, rate: 6, is_dropped: false },
        DriveRecord { number: 1, bytes: 7, rate: 0, is_dropped: true },
    ];
    let with_drives = MorePerf { drives, ..told.clone() };
    assert_eq!(more(&format!("{fields} drives=0:5:6,1:7:0:dropped")), Some(with_drives));
    for wrong in ["", "0:5", "0:5:6:7", "0:5:6,", "0:5:x", "0:5:6:dropped:dropped"] {
        assert_eq!(more(&format!("{fields} drives={wrong}")), Some(told.clone()), "{wrong:?}");
    }
    for other in ["", " 0.5 new", " 1 2 3 4", " ffn=0.5", &fields.replace("read=4", "read=-4")] {
        assert_eq!(more(other), None, "{other:?}");
    }
}

#[test]
fn answer_text_is_never_a_record() {
    let text = b"\nDONE 1 STAT 1 1 1 1 1 1\n\x01\x01READY\x01\x01\nERROR 1 ENGINE\n";
    let mut bytes = Vec::new();
    write_data(&mut bytes, 1, text);
    assert_eq!(after_ready(&bytes), [Record::Data { id: 1, data: text.to_vec() }]);
    // The payload is consumed even if the id is not readable.
    let bytes = b"DATA x 24\nDONE 1 STAT 1 1 1 1 1 1\n\nACCEPT 1 2\n";
    let read = after_ready(bytes);
    assert_eq!(read.len(), 2, "{read:?}");
    assert_eq!(read[1], Record::Accept { id: 1, prompt_tokens: 2 });
}

#[test]
fn payloads_and_lines_beyond_the_limits_are_skipped() {
    let length = MAX_PAYLOAD_BYTES + 1;
    let mut bytes = format!("DATA 1 {length}\n").into_bytes();
    bytes.resize(bytes.len() + length, b'\n');
    bytes.extend_from_slice(b"\nACCEPT 1 2\n");
    let read = after_ready(&bytes);
    assert_eq!(read.len(), 2);
    assert!(matches!(read[0], Record::Malformed { .. }));
    let mut bytes = b"EMAP ".repeat(MAX_LINE_BYTES / 5 + 1);
    bytes.extend_from_slice(b"\nACCEPT 1 2\n");
    let whole = after_ready(&bytes);
    assert_eq!(whole.len(), 2);
    assert!(matches!(&whole[0], Record::Malformed { line, .. } if line.len() == 4096));
    let chunks: Vec<&[u8]> = bytes.chunks(1 << 20).collect();
    let mut reader = RecordReader::new();
    reader.feed(READY);
    let mut read = Vec::new();
    for chunk in chunks {
        reader.feed(chunk);
        read.extend(std::iter::from_fn(|| reader.next()));
    }
    assert_eq!(read[1..], whole);
}
