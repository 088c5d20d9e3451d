//! How large a table must be to hold the declared number of keys.
//!
//! A key that finds both of its buckets full is refused even though there is room elsewhere, so a table needs more
//! rows than keys, for two reasons. Keys fall into shards at random: the fullest of 256 shards with 3,906 keys on
//! average usually gets 4,080, and more than 4,287 less often than once in a million tables. And the buckets of a
//! shard do not fill evenly: in simulations, the first key is refused when a bucket holds, on average,
//!
//! | buckets | in half of the tables | in 1 % | in 0.1 % | in 0.01 % | fewest seen |
//! |---:|---:|---:|---:|---:|---:|
//! | 4 | 31.8 | 31.0 | 30.5 | 30.3 | 29.3 of 1,600,000 tables |
//! | 16 | 31.3 | 30.4 | 30.1 | 29.8 | 29.3 of 400,000 |
//! | 144 | 30.7 | 30.0 | 29.8 | 29.6 | 29.5 of 45,000 |
//! | 1,024 | 30.3 | 29.8 | 29.6 | | 29.4 of 6,300 |
//! | 16,384 | 29.9 | 29.5 | | | 29.5 of 400 |
//!
//! With very many buckets, for every key added per bucket, the fraction of buckets with at least i keys grows by the
//! square of the fraction with at least i - 1, less its own square (Mitzenmacher, "The power of two choices in
//! randomized load balancing"). Integrating this, 5 refusals in 10^7 buckets are expected while they fill to 29.5
//! keys on average, 3 in 10^10 to 29, and 3 in 10^21 to 28.
//!
//! A row takes 64 bytes for one limit of one word, and two for its tag. So a table full of keys that are all limited,
//! with a chance of less than one in a million that any of them is refused, takes:
//!
//! | keys | shards | buckets of a shard | fill | bytes a key |
//! |---:|---:|---:|---:|---:|
//! | 100 | 1 | 4 | 78 % | 85 |
//! | 1,000 | 16 | 4 | 49 % | 136 |
//! | 10,000 | 16 | 27 | 72 % | 92 |
//! | 100,000 | 32 | 116 | 84 % | 79 |
//! | 1,000,000 | 256 | 144 | 85 % | 78 |
//! | 10,000,000 | 256 | 1,389 | 88 % | 75 |

/// Enough shards to spread the locks, but not so many that keys are spread too unevenly: a power of two, from 1 to
/// 256.
pub(crate) fn shards_for(max_keys: u64) -> u64 {
    let shards = (max_keys / 64).min(16).max(max_keys / 4096);
    shards.clamp(1, 256).next_power_of_two()
}

/// Buckets per shard for `max_keys` over all `shards`: the chance that any of that many keys is refused, if all must
/// be kept, is below one in a million.
pub(crate) fn buckets_for(max_keys: u64, shards: u64) -> u64 {
    let keys = keys_of_the_fullest(max_keys, shards.max(1));
    if keys <= super::BUCKET_ROWS {
        return 1;
    }
    // With a single shard, only the unevenness of its buckets matters. And the more buckets there are, the fuller the
    // fullest one is.
    let bucket_keys = if keys > 65_536 {
        28
    } else if keys > 8_192 || shards <= 1 {
        29
    } else {
        30
    };
    keys.div_ceil(bucket_keys)
}

/// Holds per shard for a table of `max_keys` over all `shards`: one for each key that the shard may get, as far as `max`
/// over all shards permits.
pub(crate) fn holds_for(max_keys: u64, shards: u64, max: u64) -> u64 {
    keys_of_the_fullest(max_keys, shards).min(max / shards)
}

/// The number of keys that a shard exceeds less often than once in 10^9: six standard deviations above its share, and
/// six more because the distribution is skewed (Cornish and Fisher's first term).
fn keys_of_the_fullest(max_keys: u64, shards: u64) -> u64 {
    let share = max_keys.div_ceil(shards);
    let deviation = share.isqrt().saturating_add(1);
    max_keys.min(share.saturating_add(6 * deviation).saturating_add(6))
}
