//! Line plots as SVG.

use std::fmt::Write as _;

/// Points that one line joins.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// What the legend says.
    pub(crate) name: String,
    /// A place on the x axis, which `Plot::ticks` names, and a value.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot whose x axis has a name at each point.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// Places on the x axis and their names.
    pub(crate) ticks: Vec<(f64, String)>,
    /// Whether the y axis goes by powers of ten.
    pub(crate) is_logarithmic: bool,
    pub(crate) lines: Vec<Line>,
}

const COLOURS: [&str; 4] = ["#1f6feb", "#d1242f", "#2da44e", "#bf8700"];
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

impl Plot {
    /// The picture's text.
    pub(crate) fn svg(&self) -> String {
        let values: Vec<f64> = self.lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)).collect();
        let marks = if self.is_logarithmic { powers(&values) } else { steps(&values) };
        let (low, high) = (marks.first().copied().unwrap_or(0.0), marks.last().copied().unwrap_or(1.0));
        let scaled = |v: f64| if self.is_logarithmic { v.max(1e-9).log10() } else { v };
        let at_y = |v: f64| {
            let share = (scaled(v) - scaled(low)) / (scaled(high) - scaled(low)).max(1e-9);
            HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        };
        let (first, last) = (self.ticks.first().map_or(0.0, |t| t.0), self.ticks.last().map_or(1.0, |t| t.0));
        let at_x = |x: f64| LEFT + (x - first) / (last - first).max(1e-9) * (WIDTH - LEFT - RIGHT);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#24292f\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        text(&mut out, WIDTH / 2.0, 22.0, "middle", &self.title, " font-size=\"15\"");
        for mark in &marks {
            let y = at_y(*mark);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#d0d7de\"/>",
                WIDTH - RIGHT
            );
            text(&mut out, LEFT - 8.0, y + 4.0, "end", &number(*mark), "");
        }
        for (x, name) in &self.ticks {
            text(&mut out, at_x(*x), HEIGHT - BOTTOM + 18.0, "middle", name, "");
        }
        text(&mut out, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0, "middle", &self.x, "");
        let middle = f64::midpoint(TOP, HEIGHT - BOTTOM);
        text(&mut out, 18.0, middle, "middle", &self.y, &format!(" transform=\"rotate(-90 18 {middle})\""));
        for (number, (line, colour)) in self.lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let points: Vec<String> =
                line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                points.join(" ")
            );
            for (x, y) in &line.points {
                let _ =
                    writeln!(out, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>", at_x(*x), at_y(*y));
            }
            let y = TOP + 14.0 + 20.0 * number as f64;
            let x = WIDTH - RIGHT + 14.0;
            let _ = writeln!(out, "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"3\" fill=\"{colour}\"/>", y - 5.0);
            text(&mut out, x + 20.0, y, "start", &line.name, "");
        }
        out.push_str("</svg>\n");
        out
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str, more: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{words}</text>");
}

/// Round marks from 0 to just above the greatest value.
fn steps(values: &[f64]) -> Vec<f64> {
    let most = values.iter().copied().fold(1e-3, f64::max);
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| s * 5.0 >= most).unwrap_or(most);
    (0..=5).map(|n| f64::from(n) * step).collect()
}

/// Powers of ten around the values.
fn powers(values: &[f64]) -> Vec<f64> {
    let over: Vec<f64> = values.iter().copied().filter(|v| *v > 0.0).collect();
    let low = over.iter().copied().fold(f64::INFINITY, f64::min).log10().floor();
    let high = over.iter().copied().fold(0.0, f64::max).log10().ceil();
    if !low.is_finite() || !high.is_finite() {
        return vec![1.0, 10.0];
    }
    let high = if high > low { high } else { low + 1.0 };
    (low as i32..=high as i32).map(|n| 10_f64.powi(n)).collect()
}

/// A mark's number: whole where it is one, in thousands with a comma.
pub(crate) fn number(value: f64) -> String {
    if value.abs() < 1.0 && value != 0.0 {
        // Three times 0.1 is a little more than 0.3.
        return format!("{}", (value * 1e9).round() / 1e9);
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}
