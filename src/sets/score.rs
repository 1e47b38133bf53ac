//! Scores that are floating point numbers, as those of Redis.

use std::{
    cmp::Ordering,
    error::Error,
    fmt,
    hash::{Hash, Hasher},
    ops::Add,
};

/// A floating point number as the score of a [`SortedSet`](crate::SortedSet): any `f64` except NaN, with a total order.
///
/// ```
/// use fleeting::{Score, SortedSet};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let points = SortedSet::new();
/// points.insert(Score::try_from(1.5)?, "ada").await;
/// points.insert(Score::from(-2), "bob").await;
/// assert_eq!(points.increment(Score::try_from(0.25)?, "ada").await, Score::try_from(1.75)?);
/// assert_eq!(points.range(Score::from(0)..).await[0].1, "ada");
/// assert!(Score::try_from(f64::NAN).is_err());
/// # Ok(()) }
/// ```
///
/// Infinity and negative infinity are scores. Zero and negative zero are the same score, as in Redis.
#[derive(Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Score(f64);

impl Score {
    /// The lowest score.
    pub const MIN: Self = Self(f64::NEG_INFINITY);
    /// The highest score.
    pub const MAX: Self = Self(f64::INFINITY);

    /// Returns the number.
    ///
    /// ```
    /// # use fleeting::Score;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let price = Score::try_from(9.99)?;
    /// assert_eq!(price.get(), 9.99);
    /// # Ok(()) }
    /// ```
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Score {
    type Error = NotANumber;

    /// # Errors
    ///
    /// [`NotANumber`] for NaN.
    fn try_from(number: f64) -> Result<Self, NotANumber> {
        match number.is_nan() {
            true => Err(NotANumber),
            // The sum is positive zero for both zeros, so that equal scores have equal hashes.
            false => Ok(Self(number + 0.0)),
        }
    }
}

impl From<i32> for Score {
    fn from(number: i32) -> Self {
        Self(number.into())
    }
}

impl From<u32> for Score {
    fn from(number: u32) -> Self {
        Self(number.into())
    }
}

impl From<Score> for f64 {
    fn from(score: Score) -> Self {
        score.0
    }
}

// Without NaN, equality is reflexive.
impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Hash for Score {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl Add for Score {
    type Output = Self;

    /// # Panics
    ///
    /// Panics if the sum is not a number: infinity plus negative infinity.
    fn add(self, other: Self) -> Self {
        Self::try_from(self.0 + other.0).expect("infinity plus negative infinity is not a score")
    }
}

impl fmt::Debug for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The error of a [`Score`] that would be NaN. Returned by `Score::try_from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotANumber;

impl fmt::Display for NotANumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NaN cannot be a score")
    }
}

impl Error for NotANumber {}
