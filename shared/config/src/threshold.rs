//! The confidence that a reviewer needs: a number, or a place among its own recent ones.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

/// A threshold of confidence, as `0.7` or `"q20"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// A confidence must be strictly greater than this.
    Number(f64),
    /// So many percent of the reviewer's own recent confidences, the lowest ones, do not pass.
    Quantile(u8),
}

impl Threshold {
    /// The number, where it is one.
    pub fn number(self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Quantile(_) => None,
        }
    }

    /// The percentage, where it is a quantile.
    pub fn quantile(self) -> Option<u8> {
        match self {
            Self::Quantile(percent) => Some(percent),
            Self::Number(_) => None,
        }
    }
}

impl Serialize for Threshold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Quantile(percent) => serializer.serialize_str(&format!("q{percent}")),
        }
    }
}

/// What a threshold must look like.
const FORM: &str = "a number that is at least 0 and less than 1, or a quantile such as \"q20\" (q1 to q99)";

impl<'de> Deserialize<'de> for Threshold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Threshold;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(FORM)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Threshold, E> {
                let fits = (0.0..1.0).contains(&number);
                if fits { Ok(Threshold::Number(number)) } else { Err(E::custom(format!("{number} is not {FORM}"))) }
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Threshold, E> {
                self.visit_f64(number as f64)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Threshold, E> {
                let percent = text.strip_prefix('q').and_then(|p| p.parse().ok()).filter(|p| (1..=99).contains(p));
                percent.map(Threshold::Quantile).ok_or_else(|| E::custom(format!("{text:?} is not {FORM}")))
            }
        }
        deserializer.deserialize_any(Read)
    }
}
