//! Which partition a task lies in.

use refile_core::TaskId;

/// More than these are not made: a cursor of a listing has no room for them, and each costs every look round trips.
pub(super) const MOST_PARTITIONS: u32 = 1_024;

/// How many partitions there were, oldest first: `1,8` is a namespace that was made with one and was given seven more.
///
/// A task stays where it was put. So it lies where one of the generations would put it, and most lie where the newest
/// would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topology(Vec<u32>);

impl Topology {
    /// A new namespace.
    pub(super) fn new() -> Self {
        Self(vec![1])
    }

    /// Reads what the namespace keeps.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let generations: Option<Vec<u32>> = text.split(',').map(|n| n.parse().ok().filter(|n| *n > 0)).collect();
        generations.filter(|g| !g.is_empty() && g.is_sorted_by(|a, b| a < b)).map(Self)
    }

    /// With more partitions.
    pub(super) fn grown(&self, partitions: u32) -> Self {
        Self(self.0.iter().copied().chain([partitions]).collect())
    }

    /// How many partitions there are.
    pub(super) fn partitions(&self) -> u32 {
        self.0.last().copied().unwrap_or(1)
    }

    /// How many generations there were.
    pub(super) fn generations(&self) -> usize {
        self.0.len()
    }

    /// Where a task may lie, the likeliest first, each once.
    pub(super) fn homes(&self, task: &TaskId) -> Vec<u32> {
        let hash = fnv(task.as_str().as_bytes());
        let mut homes: Vec<u32> = Vec::with_capacity(self.0.len());
        for partitions in self.0.iter().rev() {
            let home = (hash % u64::from(*partitions)) as u32;
            if !homes.contains(&home) {
                homes.push(home);
            }
        }
        homes
    }
}

impl std::fmt::Display for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// FNV-1a of 64 bits, as its authors define it (draft-eastlake-fnv): every program must place a task alike.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn tasks_spread_evenly_and_stay_findable_when_partitions_are_added() {
        let before = Topology::new();
        let after = before.grown(8);
        assert_eq!(Topology::parse(&after.to_string()), Some(after.clone()));
        let mut load = [0_u32; 8];
        for bits in 0..8_000_u64 {
            let id = TaskId::from_bits(bits.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let homes = after.homes(&id);
            assert!(homes.contains(&before.homes(&id)[0]), "an old task would be lost");
            load[homes[0] as usize] += 1;
        }
        assert!(load.iter().all(|n| (800..1200).contains(n)), "{load:?}");
    }

    #[test]
    fn only_growing_numbers_are_a_topology() {
        for bad in ["", "0", "x", "8,8", "8,1", "1,"] {
            assert_eq!(Topology::parse(bad), None, "{bad}");
        }
    }
}
