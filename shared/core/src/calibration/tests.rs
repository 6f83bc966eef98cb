//! The numbers: intervals, quantiles, bins, suggestions. What counts as right is tested in `tests/calibration.rs`.

use super::*;

fn sample(conf: f64, right: Option<bool>) -> Sample {
    Sample { reviewer: "judge".to_owned(), verdict: VerdictKind::Approved, conf, right, fate: Fate::Unknown }
}

fn many(conf: f64, right: usize, wrong: usize) -> Vec<Sample> {
    let label = |at: usize| Some(at < right);
    (0..right + wrong).map(|at| sample(conf, label(at))).collect()
}

#[track_caller]
fn close(found: (f64, f64), wanted: (f64, f64)) {
    assert!((found.0 - wanted.0).abs() < 5e-4 && (found.1 - wanted.1).abs() < 5e-4, "{found:?}, not {wanted:?}");
}

#[test]
fn the_interval_is_wilsons() {
    // Worked by hand from the formula: (p + z²/2n ± z·√(p(1-p)/n + z²/4n²)) / (1 + z²/n).
    close(wilson(8, 10), (0.4902, 0.9433));
    close(wilson(0, 10), (0.0, 0.2775));
    close(wilson(20, 20), (0.8389, 1.0));
    close(wilson(90, 100), (0.8256, 0.9448));
    assert_eq!(wilson(0, 0), (0.0, 1.0));
}

#[test]
fn a_quantile_lets_no_more_fail_than_it_says() {
    let steps: Vec<f64> = (1..=100).map(|n| f64::from(n) / 100.0).collect();
    assert_eq!(quantile(&steps, 20), Some(0.20));
    assert_eq!(quantile(&steps, 1), Some(0.01));
    assert_eq!(quantile(&steps[..19], 20), None);
    // Ties: a fifth would fail only together with the rest.
    let always_sure = [1.0; 50];
    let threshold = quantile(&always_sure, 20).unwrap_or(1.0);
    assert!(threshold < 1.0 && threshold > 0.99, "{threshold}");
    let mostly_sure: Vec<f64> = [vec![0.5; 3], vec![0.9; 17]].concat();
    assert_eq!(quantile(&mostly_sure, 20), Some(0.5));
    assert_eq!(quantile(&mostly_sure, 10).map(|t| t < 0.5), Some(true));
    assert_eq!(quantile(&[0.0; 30], 50), Some(0.0));
}

#[test]
fn the_suggestion_is_the_lowest_threshold_that_keeps_the_promise() {
    let samples = [many(0.95, 30, 0), many(0.9, 10, 0), many(0.7, 5, 5)].concat();
    let found = calibrate(&samples);
    let judge = &found[0];
    assert_eq!((judge.all, judge.too_few_labels), (Tally { right: 45, wrong: 5, unlabelled: 0 }, false));
    // With the ten at 0.7 it is 45 of 50, whose interval begins at 0.786.
    assert_eq!(judge.suggested, Some(0.89));
    // What fails lies close below what passes: the threshold is the former.
    let samples = [many(0.9, 30, 0), many(0.895, 0, 30)].concat();
    assert_eq!(calibrate(&samples)[0].suggested, Some(0.895));
    assert_eq!(calibrate(&many(0.9, 15, 15))[0].suggested, None, "no threshold keeps the promise");
    assert_eq!(calibrate(&many(0.0, 100, 0))[0].suggested, None, "a confidence of 0 never passes");
}

#[test]
fn few_labels_are_said_to_be_few() {
    let mut samples = many(0.9, 19, 0);
    samples.extend(vec![sample(0.9, None); 100]);
    let judge = &calibrate(&samples)[0];
    assert_eq!((judge.too_few_labels, judge.suggested, judge.all.unlabelled), (true, None, 100));
    samples.extend(many(0.9, 1, 0));
    assert!(!calibrate(&samples)[0].too_few_labels);
}

#[test]
fn bins_hold_what_was_labelled_and_the_last_one_is_closed() {
    let samples = [many(0.85, 3, 1), many(0.9, 1, 0), many(1.0, 1, 1), vec![sample(0.1, None)]].concat();
    let judge = calibrate(&samples).remove(0);
    let bins: Vec<_> = judge.bins.iter().map(|b| (b.from, b.to, b.right, b.wrong)).collect();
    assert_eq!(bins, [(0.8, 0.9, 3, 1), (0.9, 1.0, 2, 1)]);
    assert_eq!(["0.0", "0.8", "0.9", "0.9"], [0.05, 0.85, 0.9, 1.0].map(bin_label).each_ref().map(String::as_str));
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn samples() -> impl Strategy<Value = Vec<Sample>> {
        // Confidences with many ties, as models give them.
        let one = (0_u32..=20, prop::option::weighted(0.7, prop::bool::weighted(0.8)));
        prop::collection::vec(one.prop_map(|(conf, right)| sample(f64::from(conf) / 20.0, right)), 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_interval_holds_its_share_and_narrows(of in 1_usize..500, hits in 0_usize..500) {
            let hits = hits.min(of);
            let (low, high) = wilson(hits, of);
            let share = hits as f64 / of as f64;
            prop_assert!(0.0 <= low && low <= share && share <= high && high <= 1.0);
            let (more_low, more_high) = wilson(hits * 4, of * 4);
            prop_assert!(more_high - more_low < high - low);
        }

        #[test]
        fn what_passes_a_suggestion_keeps_the_promise(samples in samples()) {
            for found in calibrate(&samples) {
                prop_assert_eq!(found.all.labelled() + found.all.unlabelled, samples.len());
                let Some(threshold) = found.suggested else { continue };
                prop_assert!((0.0..1.0).contains(&threshold));
                let passing: Vec<bool> = samples.iter().filter(|s| s.conf > threshold).filter_map(|s| s.right).collect();
                let right = passing.iter().filter(|right| **right).count();
                prop_assert!(wilson(right, passing.len()).0 >= TARGET, "{} of {}", right, passing.len());
            }
        }

        #[test]
        fn no_more_than_the_percentage_fails_a_quantile(confs in prop::collection::vec(0_u32..=20, 20..200), q in 1_u8..100) {
            let confs: Vec<f64> = confs.into_iter().map(|c| f64::from(c) / 20.0).collect();
            let threshold = quantile(&confs, q).unwrap_or(f64::NAN);
            prop_assert!((0.0..1.0).contains(&threshold));
            let failing = confs.iter().filter(|c| **c > 0.0 && **c <= threshold).count();
            prop_assert!(failing * 100 <= confs.len() * usize::from(q), "{} of {}", failing, confs.len());
        }
    }
}
