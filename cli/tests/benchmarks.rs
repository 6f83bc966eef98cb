//! What `make bench` writes: the verdicts follow from the figures, and the file in the repository is of that shape.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../benches/benchmarks/figures.rs"]
mod figures;
#[path = "../benches/benchmarks/report.rs"]
mod report;
#[path = "../benches/benchmarks/svg.rs"]
mod svg;
#[path = "../benches/benchmarks/targets.rs"]
mod targets;

use figures::{Figures, Growth, median, quantile};
use targets::{Bound, Target, short, targets};

#[test]
fn a_verdict_follows_from_the_figure() {
    for (bound, figure, is_met) in [
        (Bound::AtLeast(0.4), 0.4, true),
        (Bound::AtLeast(0.4), 0.399, false),
        (Bound::Under(10.0), 9.99, true),
        (Bound::Under(10.0), 10.0, false),
        (Bound::AtMost(2_000.0), 2_000.0, true),
        (Bound::AtMost(2_000.0), 2_000.1, false),
        // What was not measured is not met.
        (Bound::Under(10.0), 0.0, false),
        (Bound::Under(10.0), f64::NAN, false),
        (Bound::AtLeast(0.4), f64::INFINITY, false),
    ] {
        assert_eq!(bound.is_met(figure), is_met, "{bound:?} {figure}");
    }
    let row = |figure| Target { what: "it".to_owned(), bound: Bound::Under(2.0), figure, unit: " ms" };
    assert_eq!(row(1.234).row(false), ["it", "under 2 ms", "1.23 ms", "met"]);
    assert_eq!(row(3_456.0).row(false), ["it", "under 2 ms", "3,456 ms", "**not met**"]);
    assert_eq!(row(1.234).row(true), ["it", "under 2 ms", "1.23 ms", "a trial"]);
}

#[test]
fn the_targets_are_read_off_the_figures() {
    let mut of = Figures::default();
    assert!(targets(&of).iter().all(|t| !t.bound.is_met(t.figure)), "nothing was measured");
    let figure = |of: &Figures, what: &str| {
        let found: Vec<f64> = targets(of).into_iter().filter(|t| t.what.contains(what)).map(|t| t.figure).collect();
        assert_eq!(found.len(), 1, "{what}");
        found[0]
    };
    let growth = |backlog, tasks_per_s| Growth { backlog, tasks_per_s, memory_per_open_task: 2.0, ..Growth::default() };
    of.growth = vec![growth(1_000, 1.0), growth(10_000, 200.0), growth(100_000, 5.0), growth(1_000_000, 150.0)];
    of.binary_bytes = 15e6;
    of.idle.coordinator_percent = 0.25;
    of.idle.reviewer_percent = 0.5;
    for (what, expected) in [("of that with 10,000", 75.0), ("The `refile` binary", 15.0), ("An idle fleet", 0.75)] {
        assert!((figure(&of, what) - expected).abs() < 1e-9, "{what}");
    }
    let text = report::markdown(&of);
    assert!(
        text.contains("| 1,000,000 open tasks: throughput, of that with 10,000 | at least 80 % | 75 % | **not met** |")
    );
    assert!(text.contains("| The `refile` binary | under 30 MB | 15 MB | met |"));
}

#[test]
fn numbers_and_tables_are_written_so() {
    for (value, text) in
        [(0.0, "0"), (0.012_34, "0.012"), (0.5, "0.5"), (12.34, "12.3"), (100.0, "100"), (1_234_567.8, "1,234,568")]
    {
        assert_eq!(short(value), text);
    }
    assert_eq!([svg::number(0.1 * 3.0), svg::number(12_345.0)], ["0.3", "12,345"]);
    let is = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    is(median(&[3.0, 1.0, 2.0]), 2.0);
    is(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    is(median(&[]), 0.0);
    let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
    is(quantile(&hundred, 0.99), 99.0);
    is(quantile(&hundred, 1.0), 100.0);
    is(quantile(&[7.0], 0.99), 7.0);
    is(quantile(&[], 0.99), 0.0);
    let rows = [["a|b".to_owned(), "1".to_owned()]];
    assert_eq!(report::table(&["x", "y"], &rows), "| x | y |\n| --- | ---: |\n| a\\|b | 1 |\n\n");
}

#[test]
fn the_file_in_the_repository_is_what_the_program_writes() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("BENCHMARKS.md")).unwrap();
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(headings, report::HEADINGS);
    for (name, svg) in report::plots(&Figures::default()) {
        assert!(text.contains(&format!("(docs/benchmarks/{name})")), "{name}");
        for svg in [svg, std::fs::read_to_string(root.join("docs/benchmarks").join(name)).unwrap()] {
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{name}: {svg}");
        }
    }
    for target in targets(&Figures::default()) {
        assert!(text.contains(&format!("| {} |", target.what)), "{} is not in the file", target.what);
    }
}
