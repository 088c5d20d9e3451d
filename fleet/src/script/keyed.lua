-- Requests of hosts for their leases of up to 64 keys of one limit: for each, in order, settles what the host reports of
-- the key, then grants. All keys are of one partition, so that a cluster has them in one place.
--
-- KEYS[1]: the record of the partition. KEYS[2] and so on: the records of the keys.
--
-- ARGV: 1 protocol, 2 run id of this server ('' to query it), 3 version of the declaration, 4 the declaration as text,
-- 5 its terms. ARGV[n + 4] is the request for KEYS[n], 72 bytes: host, sequence, sequence of the first request since the
-- store last answered one, and since that answer spent, refunded and what of the spent no store had granted; held; wanted;
-- the greatest grant number that the host knows.
--
-- At every step, level + outstanding <= burst, but for what hosts spend before they ask: that is charged in full, so
-- what exceeds the burst for a moment is missing later. Of places, outstanding <= burst.
--
-- A partition's record says what is the same for all its keys, and outlives them:
-- 'shmlimit keys', protocol, version, declared, terms, run, created, seen, shift, quarantine, generation, first
-- generation of this kind of limit, when the record is no longer needed, how far the numbers of grants are ahead of time.
--
-- A key's record is one list: generation of the terms, when it was written, level, the period of a level or when the
-- window began; then for each host with a lease or a recent request: host, sequence, how far that is after the first one
-- since an answer, spent, refunded, ungranted, outstanding, granted, demand, written off, expiry after and last seen
-- before the record was written. Small numbers take a byte.
--
-- Of places, hosts report nothing. So the level is the number of the latest grant, the period how far numbers were ahead
-- when it was written, and of each host spent, refunded and ungranted are the number of the latest grant when it asked,
-- since when it has had places, and since when it waits for its share. A number is never below the seconds of the store's
-- time, and a record stays until they have caught up with its number: so numbers rise although records go.

local FIRST, OF_EACH = 5, 12
local SEQUENCE, SINCE, SPENT, REFUNDED, UNGRANTED, OUT, GRANTED, DEMAND, OFF, EXPIRY, SEEN = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local NUMBER, HAD, WAITS = SPENT, REFUNDED, UNGRANTED
-- More grants of one key than a store can lose. When it may have lost some, the numbers of all keys advance by this many.
local LOST = 65536
-- A host that has not asked for so many microseconds, or for half a lease if that is longer, no longer waits for a place.
local PATIENCE = 250000
-- A hundred years: more than the time to live of a key needs.
local LONGEST = 3155760000000000
local MARK = cmsgpack.pack('shmlimit keys')
local ceil = math.ceil

local version = tonumber(ARGV[3])
local protocol, in_force, seen, kept_until = ARGV[1], nil, 0, 0
local run, created, shift, quarantine, generation, of_kind, ahead

-- What a key holds, or an answer in its place.
local function read(key)
    local content = redis.pcall('GET', key)
    if type(content) ~= 'table' then return content end
    if string.find(content.err, 'WRONGTYPE', 1, true) then return nil, { 'foreign', redis.call('TYPE', key).ok } end
    return nil, content
end

local partition, problem = read(KEYS[1])
if problem then return problem end
if partition then
    if string.sub(partition, 1, #MARK) ~= MARK then return { 'foreign', 'string' } end
    local fields = { cmsgpack.unpack(partition) }
    if fields[2] ~= protocol then return { 'protocol', fields[2] } end
    in_force = { version = fields[3], declared = fields[4], terms = fields[5] }
    run, created, seen, shift, quarantine, generation, of_kind, kept_until, ahead = unpack(fields, 6)
end
in_force = in_force or { version = version, declared = ARGV[4], terms = ARGV[5] }
use_terms(in_force.terms)

local utc, now
utc, now, shift = clock(shift or 0, seen)
local run_before = run
run = run_id(ARGV[2])
quarantine, ahead = quarantine or 0, ahead or 0
if run_before and run_before ~= run then
    quarantine = now + longest_lease()
    if kind == 'places' then ahead = ahead + LOST end
end
-- The terms of all keys are told by the second at which they came into force. A key that was counted under others is
-- converted when it is next asked for.
local this_second = floor(now / 1000000)
created, generation, of_kind = created or now, generation or this_second, of_kind or this_second

-- A different declaration comes into force if it has a higher version, or if all hosts of the one in force are gone;
-- keys keep what was spent. Hosts with a lower version are served by the one in force.
if in_force.declared ~= ARGV[4] then
    local is_gone = now - seen > 4 * lease
    if version > in_force.version or is_gone then
        local kind_before, longest_before = kind, longest_lease()
        in_force = { version = version, declared = ARGV[4], terms = ARGV[5] }
        use_terms(ARGV[5])
        generation = max(generation + 1, this_second)
        if kind ~= kind_before then
            -- Nothing that hosts had counts here: all keys begin anew.
            created, of_kind, ahead = now, generation, ahead + LOST
            quarantine = max(quarantine, now + longest_before)
        end
    elseif version == in_force.version or string.match(ARGV[5], '^%a+') ~= kind then
        return { 'declared', in_force.declared }
    end
elseif version > in_force.version then
    in_force.version = version
end

local longest = longest_lease()
local capacity = burst * period
local current = floor(now / quantum)
local begins, ends = 0, 0
if kind == 'window' then begins, ends = window_at(utc) end
local patience = max(PATIENCE, floor(lease / 2))
-- Without this record, numbers go by the time.
kept_until = max(kept_until, now + DAY + ahead * 1000000)

-- The whole units that are neither used nor leased.
local function left_beside(level, outstanding) return max(0, floor((capacity - level - outstanding * period) / period)) end

-- Whether a host has a lease, or has asked within one.
local function is_active(list, i) return list[i + OUT] > 0 or now - list[i + SEEN] <= lease end

-- How many places each host may have if those that want fewer leave the rest to the others: rounded down, and rounded up.
-- No bound if there are enough for all. The host at `at` wants `demand`.
local function shares(list, at, demand)
    local wants, all = { demand }, demand
    for i = FIRST, #list, OF_EACH do
        if i ~= at and is_active(list, i) then
            wants[#wants + 1] = list[i + DEMAND]
            all = all + list[i + DEMAND]
        end
    end
    if all <= burst then return MAX, MAX end
    table.sort(wants)
    local rest = burst
    for i = 1, #wants do
        local hosts = #wants - i + 1
        if wants[i] * hosts > rest then return floor(rest / hosts), ceil(rest / hosts) end
        rest = rest - wants[i]
    end
end

-- Whether a host waits for its share of the places.
local function is_waiting(list, i) return list[i + WAITS] > 0 and now - list[i + SEEN] <= patience end

-- Notes whether the host at `at` waits for its share, and grants it places beside those that it keeps. Hosts wait in the
-- order in which they came, and one place is kept for each, before others get any.
local function grant_places(list, at, kept, wanted, available)
    local even, fair = shares(list, at, min(MAX, kept + wanted))
    local waits, since, before = wanted > 0 and kept < max(1, even), 0, 0
    if waits then since = list[at + WAITS] > 0 and list[at + WAITS] or now end
    for i = FIRST, #list, OF_EACH do
        local is_before = since == 0 or list[i + WAITS] < since or (list[i + WAITS] == since and i < at)
        if i ~= at and is_before and is_waiting(list, i) then before = before + 1 end
    end
    local limit = max(0, (waits and max(1, even) or fair) - kept)
    local granted = min(wanted, max(0, available - before), limit)
    local is_served = granted == wanted or kept + granted >= max(1, even)
    list[at + WAITS] = is_served and 0 or since
    return granted
end

-- While others wait, a host takes no place anew above an even share. With fewer places than hosts, that is one place for
-- half a lease, and then none until it has let go of it, so that all have their turn.
local function ceiling(list, at)
    for i = FIRST, #list, OF_EACH do
        if i ~= at and is_waiting(list, i) then
            local even = shares(list, at, list[at + DEMAND])
            local is_new = list[at + OUT] > 0 and now - list[at + HAD] < lease / 2
            return even == 0 and is_new and 1 or even
        end
    end
    return MAX
end

-- How long the store will have no unit of a key to grant if no host returns one. `window_end` is the end of its window.
local function free_in(list, level, outstanding, window_end)
    -- A place is free whenever a hold ends.
    if kind == 'places' or left_beside(level, outstanding) > 0 then return 0 end
    if kind == 'window' then return max(0, window_end - utc) end
    local leases = {}
    for i = FIRST, #list, OF_EACH do
        if list[i + OUT] > 0 then leases[#leases + 1] = { list[i + EXPIRY], list[i + OUT] } end
    end
    table.sort(leases, function(one, other) return one[1] < other[1] end)
    -- What expires counts as spent, and only then begins to drain.
    local from = current
    for i = 1, #leases + 1 do
        local expires = leases[i]
        if outstanding < burst then
            local free = (from + max(0, ceil((level - (burst - 1 - outstanding) * period) / units))) * quantum
            if not expires or free < expires[1] then return max(0, min(MAX, free - now)) end
        end
        local to = floor(expires[1] / quantum)
        level = min(MAX, level_after(level, to - from) + expires[2] * period)
        from, outstanding = to, outstanding - expires[2]
    end
end

-- What a host is told of the key after its request was served.
local function reply(list, at, level, window_end, granted, kept)
    local active, outstanding, unmet = 0, 0, 0
    for i = FIRST, #list, OF_EACH do
        local out = list[i + OUT]
        if i == at or is_active(list, i) then
            active, unmet = active + 1, unmet + max(0, list[i + DEMAND] - out)
            outstanding = outstanding + out
        end
    end
    local left = left_beside(level, outstanding)
    local share, drained_in = 0, 0
    if kind == 'backlog' then
        share = floor(min(burst, floor(floor(lease / quantum) * units / period)) / active)
        drained_in = min(MAX, ceil(level / units) * quantum)
    else
        share = floor(max(0, burst - level) / active)
    end
    local number, most = 0, MAX
    if kind == 'places' then number, most = list[at + NUMBER], ceiling(list, at) end
    return {
        'granted', list[at + SEQUENCE], granted, kept, max(0, list[at + EXPIRY] - now), share, number, drained_in, utc,
        most, active, max(0, quarantine - now), unmet <= left and left or 0,
        free_in(list, level, outstanding, window_end),
    }
end

-- Writes a key's record. It is gone one lease after its last lease is over and all has drained or the window has ended:
-- until then a host may report what was charged when its lease ran out.
local function save(name, list, at, level, window_end)
    local written = { generation, now, kind == 'places' and list[3] or level, kind == 'backlog' and period or list[4] }
    local outstanding, length = 0, 4
    for i = FIRST, #list, OF_EACH do
        local out, expiry, last = list[i + OUT], list[i + EXPIRY], list[i + SEEN]
        if i == at or out > 0 or now < max(expiry, last) + longest then
            outstanding = outstanding + out
            for field = 0, OFF do written[length + 1 + field] = list[i + field] end
            written[length + 1 + EXPIRY], written[length + 1 + SEEN] = expiry - now, now - last
            length = length + OF_EACH
        end
    end
    local needed = max(0, window_end - utc)
    if kind == 'backlog' then needed = min(LONGEST, ceil((level + outstanding * period) / units) * quantum) end
    if kind == 'places' then needed = max(0, list[3] - ahead - this_second) * 1000000 end
    needed = needed + 2 * longest
    redis.call('SET', name, cmsgpack.pack(written), 'PX', text(floor(needed / 1000) + 1))
    kept_until = max(kept_until, now + DAY + ahead * 1000000 + needed)
end

local function answer(name, request)
    local host, sequence, began, spent, refunded, ungranted, held, wanted, number = struct.unpack('>c8I8I8I8I8I8I8I8I8', request)
    local content, foreign = read(name)
    if foreign then return foreign end
    local list
    if content then
        local is_list
        is_list, list = pcall(cmsgpack.unpack, content)
        if not is_list or type(list) ~= 'table' then return { 'foreign', 'string' } end
    end
    if not list or list[1] < of_kind then list = { generation, now, 0, kind == 'backlog' and period or 0 } end

    local base, level, window_end, has_turned = list[2], list[3], 0, false
    if kind == 'places' then
        -- No grant number is given twice, whatever the store has lost.
        list[3] = max(list[3] + ahead - list[4], this_second + ahead, number)
        list[4], level = ahead, 0
        spent, refunded, ungranted = 0, 0, 0
    elseif list[1] ~= generation then
        if kind == 'backlog' then
            level = min(MAX, ceil(level / list[4]) * period)
        else
            -- Leases end with their window, so it does not go back where the wall clock does.
            list[4] = window_at(max(utc, list[4]))
        end
    end
    if kind == 'window' then
        window_end = ends
        if begins > list[4] then
            list[4], level, has_turned = begins, 0, true
        elseif begins < list[4] then
            local _
            _, window_end = window_at(list[4])
        end
    end

    -- Expired units count as spent from that moment, unless their window is over. Places are free again.
    local at, expired = 0, {}
    for i = FIRST, #list, OF_EACH do
        list[i + EXPIRY], list[i + SEEN] = base + list[i + EXPIRY], base - list[i + SEEN]
        if list[i] == host then at = i end
        if list[i + OUT] > 0 and list[i + EXPIRY] <= now then expired[#expired + 1] = i end
    end
    if #expired > 1 then
        table.sort(expired, function(one, other) return list[one + EXPIRY] < list[other + EXPIRY] end)
    end
    local drained = floor(base / quantum)
    for i = 1, #expired do
        local of = expired[i]
        if kind ~= 'places' then list[of + OFF] = list[of + OUT] end
        list[of + OUT] = 0
        if kind ~= 'places' and not has_turned then
            local to = floor(list[of + EXPIRY] / quantum)
            level = min(MAX, level_after(level, to - drained) + list[of + OFF] * period)
            drained = to
        end
    end
    level = level_after(level, current - drained)

    local is_known, last_spent, last_refunded, last_ungranted = at > 0, 0, 0, 0
    if is_known then
        local last = list[at + SEQUENCE]
        if sequence < last then return { 'stale', last } end
        if sequence == last then
            local kept = max(0, list[at + OUT] - list[at + GRANTED])
            return reply(list, at, level, window_end, list[at + GRANTED], kept)
        end
        -- Of what it reported before and was not told an answer to, the difference is charged.
        if kind ~= 'places' and last - list[at + SINCE] == began then
            last_spent, last_refunded, last_ungranted = list[at + SPENT], list[at + REFUNDED], list[at + UNGRANTED]
        end
    else
        at = #list + 1
        list[at] = host
        for field = SEQUENCE, SEEN do list[at + field] = 0 end
    end
    local report, refund, by_policy = spent - last_spent, refunded - last_refunded, ungranted - last_ungranted
    if report < 0 or refund < 0 or by_policy < 0 then return { 'fell', last_spent } end
    -- What an outage policy admitted was taken from no lease. It is charged once this host has been granted what there is
    -- for it.
    by_policy = min(by_policy, report)
    report = report - by_policy

    -- A host has a lease that a partition as young as this does not know: the store has lost what it acknowledged. Nothing
    -- new is granted until all leases of that time are over, and what this key had counts as used until then.
    local is_lost = not is_known and held > 0 and now < created + longest
    if is_lost and quarantine < created + longest then
        quarantine = created + longest
        if kind == 'places' then
            ahead = ahead + LOST
            list[3], list[4] = list[3] + LOST, ahead
        end
    end
    local is_quarantined = quarantine > now

    -- Units that are outstanding and neither spent nor held have been returned. If it holds more than is outstanding, its
    -- lease has run out: it could spend that until now. Its next request says how much it did spend, and it is granted
    -- nothing before that.
    local kept = min(held, list[at + OUT])
    local has_lapsed = held > kept
    if is_quarantined then kept = held elseif has_lapsed then kept = 0 end
    local off = list[at + OFF]
    local absorbed = min(report, off)
    level = min(MAX, level + (report - absorbed) * period)
    level = max(0, level - refund * period)
    off = has_lapsed and min(off - absorbed, held) or 0

    -- Each host is expected to want what it last wanted, and at least one unit. If that is more than there is, each gets
    -- at most the level up to which all are served alike; what those below an even share leave is divided once among the
    -- others. So no host takes what another one was seen to use, and none that has nothing is left without the last unit.
    local active, outstanding, demands = 1, kept, 0
    for i = FIRST, #list, OF_EACH do
        local out = list[i + OUT]
        if i ~= at and is_active(list, i) then
            active, outstanding, demands = active + 1, outstanding + out, demands + max(1, list[i + DEMAND])
        end
    end
    local demand = min(MAX, kept + wanted)
    local available = left_beside(level, outstanding)
    local granted = 0
    local may_grant = wanted > 0 and not has_lapsed and not is_quarantined
    if kind == 'places' then
        granted = grant_places(list, at, kept, wanted, may_grant and available or 0)
        if granted > 0 then list[3] = list[3] + 1 end
    elseif may_grant and available > 0 then
        local limit, pool = wanted, available + outstanding
        if demand + demands > pool then
            local even = floor(pool / active)
            local spare, hungry = pool - even * active, 1
            for i = FIRST, #list, OF_EACH do
                if i ~= at and is_active(list, i) then
                    local wants = max(1, list[i + DEMAND])
                    if wants < even then spare = spare + even - wants else hungry = hungry + 1 end
                end
            end
            limit = max(0, max(1, even + floor(spare / hungry)) - kept)
        end
        -- The end of a window is handed out in ever smaller leases, so that little of it is left where nobody spends it.
        if kind == 'window' and active > 1 then limit = min(limit, max(1, ceil(available / (2 * active)))) end
        granted = min(wanted, available, limit)
    end

    local total = kept + granted
    outstanding = outstanding + granted
    -- What does not fit beside what is leased is written off: nobody waits for it to drain.
    local room = max(0, capacity - outstanding * period)
    level = level + min(by_policy * period, max(0, room - level))
    if is_lost and kind == 'backlog' then
        level = min(MAX, max(level - held * period, room + (floor(quarantine / quantum) - current) * units))
    end
    local expiry = now
    if total > 0 then
        expiry = now + lease + slot()
        if kind == 'window' then expiry = min(expiry, now + max(0, window_end - utc)) end
    end
    if kind == 'places' then
        spent, ungranted = list[3], list[at + WAITS]
        refunded = kept > 0 and list[at + HAD] or total > 0 and now or 0
    end
    list[at + SEQUENCE], list[at + SINCE], list[at + SPENT] = sequence, sequence - began, spent
    list[at + REFUNDED], list[at + UNGRANTED], list[at + OUT] = refunded, ungranted, total
    list[at + GRANTED], list[at + DEMAND], list[at + OFF] = granted, demand, off
    list[at + EXPIRY], list[at + SEEN] = expiry, now
    save(name, list, at, level, window_end)
    return reply(list, at, level, window_end, granted, kept)
end

local answers = { 'keys' }
for i = 2, #KEYS do answers[i] = answer(KEYS[i], ARGV[i + 4]) end
local written = cmsgpack.pack(
    'shmlimit keys', protocol, in_force.version, in_force.declared, in_force.terms, run, created, now, shift, quarantine,
    generation, of_kind, kept_until, ahead
)
redis.call('SET', KEYS[1], written, 'PX', text(floor((kept_until - now) / 1000) + 1))
return answers
