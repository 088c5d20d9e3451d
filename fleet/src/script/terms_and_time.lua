-- The terms of a limit, the store's time, and windows of the wall clock: what both scripts begin with.
--
-- The terms are ten words: kind ('backlog', 'window' or 'places'), burst, units per period, period in quanta,
-- microseconds per quantum, lease in microseconds, kind of window ('none', 'length', 'day', 'week', 'month'), its
-- length in microseconds, seconds east of UTC, days from Monday to the start of a week.
--
-- Numbers are whole and below 2^53, where doubles are exact; the client rejects declarations that are not. A level is
-- in units times the period: it falls by the units per period in each quantum, so nothing is rounded.

local MAX = 9007199254740991
local SLOTS = 16
local DAY = 86400000000

local floor, min, max = math.floor, math.min, math.max
local function text(number) return string.format('%.0f', number) end

local kind, burst, units, period, quantum, lease, window_kind, window_length, east, week_start
local function use_terms(terms)
    local words = {}
    for word in string.gmatch(terms, '%S+') do words[#words + 1] = tonumber(word) or word end
    kind, burst, units, period, quantum, lease, window_kind, window_length, east, week_start = unpack(words)
end

-- Leases end at sixteenths of a lease, so that those close together end together. They last for that much longer than
-- is declared, and are rounded up: a host that renews one every eighth always has nearly a whole one in hand.
local function slot() return max(1, floor(lease / SLOTS)) end
-- After this, every lease that was granted until now is over.
local function longest_lease() return lease + 2 * slot() end

-- The store's clock, from how far it is ahead of the wall clock and when it was last read. If the wall clock is set back,
-- time continues from where it was. Returns what the wall clock shows, the time, and how far that is now ahead.
local function clock(shift, seen)
    local time = redis.call('TIME')
    local utc = tonumber(time[1]) * 1000000 + tonumber(time[2])
    if utc + shift < seen then shift = seen - utc end
    return utc, utc + shift, shift
end

-- Identifies the server's process.
local function run_id(given)
    if given ~= '' then return given end
    return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or 'unknown'
end

-- What is left of a level after so many quanta.
local function level_after(level, elapsed)
    if units == 0 or level <= 0 then return level end
    if elapsed >= level / units then return 0 end
    return max(0, level - elapsed * units)
end

-- The begin and end of the wall-clock window that contains an instant.
local function first_of_month(day)
    local shifted = day + 719468
    local of_era = shifted % 146097
    local leaps = floor(of_era / 1460) - floor(of_era / 36524) + floor(of_era / 146096)
    local year = floor((of_era - leaps) / 365)
    local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
    local month = floor((5 * of_year + 2) / 153)
    return day - (of_year - floor((153 * month + 2) / 5))
end
local function window_at(instant)
    if window_kind == 'length' then
        local start = instant - instant % window_length
        return start, start + window_length
    end
    local offset = east * 1000000
    local day = floor((instant + offset) / DAY)
    local first, following = day, day + 1
    if window_kind == 'week' then
        first = day - (day + 3 - week_start) % 7
        following = first + 7
    elseif window_kind == 'month' then
        first = first_of_month(day)
        following = first_of_month(first + 31)
    end
    return first * DAY - offset, following * DAY - offset
end

