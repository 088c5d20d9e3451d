-- One request of one host for its lease of one limit: settles what the host reports, then grants.
--
-- KEYS[1]: the hash of the limit, the only key that is accessed.
--
-- ARGV: 1 protocol, 2 run id of this server ('' to query it), 3 version of the declaration, 4 the declaration as
-- text, 5 its terms, 6 host, 7 sequence, 8 spent and 9 refunded, both modulo 2^52, 10 held, 11 wanted, 12 the
-- greatest grant number that the host knows, 13 what of the spent no store had granted, modulo 2^52.
--
-- The answer to a request that is served is the same as for a key (keyed.lua), whose last number, in how many microseconds
-- there will be a unit, is 0 here.
--
-- At every step: level + outstanding <= burst, unless hosts report that requests cost more than was granted for them.

local MODULUS = 4503599627370496
local SWEPT = 64
-- More grants of one limit than a store can lose. When it may have lost some, grant numbers are advanced by this
-- many.
local LOST = 65536
-- At most so many hosts wait for places in turn; of any others, whoever asks first gets a place in the queue.
local QUEUED = 64
-- Who waits for a place and does not ask for so many microseconds, or half a lease if that is longer, waits no more.
local PATIENCE = 250000

local key = KEYS[1]
local version, host, sequence = tonumber(ARGV[3]), ARGV[6], tonumber(ARGV[7])
local spent, refunded = tonumber(ARGV[8]), tonumber(ARGV[9])
local held, wanted, ungranted = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[13])
local function numbers(line)
    local found = {}
    for word in string.gmatch(line, '%S+') do found[#found + 1] = tonumber(word) end
    return found
end
local function line(list)
    for i = 1, #list do list[i] = text(list[i]) end
    return table.concat(list, ' ')
end

-- These numbers share one field, in this order. `sweep` is a cursor, stored as text.
local NUMBERS = {
    'created', 'seen', 'shift', 'quarantine', 'level', 'drained', 'outstanding', 'window', 'grants', 'epoch', 'granted',
    'former_epoch',
}
local FIELDS = {
    'protocol', 'version', 'declared', 'terms', 'run', 'account', 'slots', 'wants', 'former_wants', 'sweep', 'queue',
    'host:' .. host,
}
local read = redis.pcall('HMGET', key, unpack(FIELDS))
if read.err then
    if string.find(read.err, 'WRONGTYPE', 1, true) then return { 'foreign', redis.call('TYPE', key).ok } end
    return read
end
local stored, account = {}, {}
for i = 1, #FIELDS do stored[FIELDS[i]] = read[i] or nil end
if stored.account then
    local values = numbers(stored.account)
    for i = 1, #NUMBERS do account[NUMBERS[i]] = values[i] end
end
local function number(name) return account[name] or 0 end
if not stored.protocol and redis.call('HLEN', key) > 0 then return { 'foreign', 'hash' } end
if stored.protocol and stored.protocol ~= ARGV[1] then return { 'protocol', stored.protocol } end

use_terms(stored.terms or ARGV[5])

local seen = number('seen')
local utc, now, shift = clock(number('shift'), seen)
local run = run_id(ARGV[2])
local created = account.created or now
local quarantine = number('quarantine')
local grants = number('grants')
if stored.run and stored.run ~= run then
    quarantine = now + longest_lease()
    grants = grants + LOST
end

local level, outstanding = number('level'), number('outstanding')
local drained = account.drained or floor(now / quantum)
local slots = numbers(stored.slots or '')
local window = number('window')
local window_end = 0
local function turn_window()
    if kind ~= 'window' then return end
    -- The window never goes back, whatever the wall clock does.
    local start, finish = window_at(utc)
    if start > window then
        window, level, outstanding, slots = start, 0, 0, {}
    elseif start < window then
        start, finish = window_at(window)
    end
    window_end = finish
end
turn_window()

local function drain(to)
    if to <= drained then return end
    level = level_after(level, to - drained)
    drained = to
end

-- Expired units count as spent from that moment; places are free again.
local live = {}
for i = 1, #slots, 2 do
    local expiry, expired = slots[i], slots[i + 1]
    if expiry > now then
        live[#live + 1] = expiry
        live[#live + 1] = expired
    else
        outstanding = outstanding - expired
        if kind ~= 'places' then
            drain(floor(expiry / quantum))
            level = min(MAX, level + expired * period)
        end
    end
end
slots = live
drain(floor(now / quantum))

-- A different declaration comes into force if it has a higher version, or if all hosts of the one in force are gone;
-- it keeps what was spent. Hosts with a lower version are served by the one in force.
local in_force = { version = stored.version or ARGV[3], declared = stored.declared or ARGV[4] }
in_force.terms = stored.terms or ARGV[5]
local epoch_before, former_epoch, granted_all = number('epoch'), number('former_epoch'), number('granted')
local wants, former = numbers(stored.wants or ''), numbers(stored.former_wants or '')
if in_force.declared ~= ARGV[4] then
    local ruling = tonumber(in_force.version)
    local is_gone = outstanding <= 0 and now - seen > 4 * lease
    if version > ruling or is_gone then
        local kind_before, period_before, longest_before = kind, period, longest_lease()
        in_force = { version = ARGV[3], declared = ARGV[4], terms = ARGV[5] }
        use_terms(ARGV[5])
        wants, former, epoch_before, former_epoch, granted_all = {}, {}, 0, 0, 0
        drained = floor(now / quantum)
        if kind ~= kind_before then
            -- Nothing that hosts had counts here: it begins anew.
            created, level, outstanding, slots, window = now, 0, 0, {}, 0
            quarantine = max(quarantine, now + longest_before)
        else
            level = min(MAX, math.ceil(level / period_before) * period)
            -- Leases end with their window, so it does not go back where the wall clock does.
            if kind == 'window' then window = window_at(max(utc, window)) end
        end
        turn_window()
    elseif version == ruling or string.match(ARGV[5], '^%a+') ~= kind then
        return { 'declared', in_force.declared }
    end
elseif version > tonumber(in_force.version) then
    in_force.version = ARGV[3]
end
local lease_end = now + lease + slot()
lease_end = lease_end + (-lease_end) % slot()
if kind == 'window' then lease_end = min(lease_end, now + max(0, window_end - utc)) end

local function slot_add(expiry, added)
    for i = 1, #slots, 2 do
        if slots[i] == expiry then
            slots[i + 1] = slots[i + 1] + added
            if slots[i + 1] == 0 then
                table.remove(slots, i)
                table.remove(slots, i)
            end
            return
        end
    end
    if added == 0 then return end
    local at = 1
    while slots[at] and slots[at] < expiry do at = at + 2 end
    table.insert(slots, at, added)
    table.insert(slots, at, expiry)
end

-- The host: last sequence, outstanding, expiry, spent, written off, granted, kept, grant number, share, epoch,
-- granted in the epoch, wanted in the epoch and in the one before, how much it adds to the wants, last seen,
-- refunded, ungranted, since when it has had places, the most places that it may take,
-- the hosts of the last answer, left for all.
local record = stored['host:' .. host] and numbers(stored['host:' .. host])
if record and record[15] < created then record = nil end
local retention = DAY + 16 * lease
if kind == 'backlog' and units > 0 then retention = retention + floor(burst * period / units) * quantum end
if kind == 'window' then retention = retention + 31 * DAY end
if not record then
    -- The host has a history that this young key does not know: the store has lost what it acknowledged. It starts
    -- with nothing left, so that what was lost is not spent a second time.
    if sequence > 1 and now - created < retention and quarantine == 0 then
        quarantine = now + longest_lease()
        grants = grants + LOST
        -- Until the end of the quarantine, all of it counts as used but for what is leased.
        if kind == 'backlog' then drained = floor(quarantine / quantum) end
    end
    -- What a host has used before its first request was used of this limit, so it is charged. For a host whose
    -- history is lost, nobody knows how much of it was charged.
    local is_first = sequence == 1
    record = {
        0, 0, 0, is_first and 0 or spent, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, now, is_first and 0 or refunded,
        is_first and 0 or ungranted, 0, MAX, 1,
    }
end

local epoch, queue = epoch_before, stored.queue
-- No grant number is given twice, whatever the store has lost.
grants = max(grants, tonumber(ARGV[12]))
local function save(with_host)
    local written = {
        'account',
        line({
            created, now, shift, quarantine, level, drained, outstanding, window, grants, epoch, granted_all,
            former_epoch,
        }),
        'slots', line(slots), 'wants', line(wants), 'former_wants', line(former),
    }
    -- These seldom change.
    local words = {
        protocol = ARGV[1], version = in_force.version, declared = in_force.declared, terms = in_force.terms, run = run,
        queue = queue,
    }
    for name, word in pairs(words) do
        if stored[name] ~= word then
            written[#written + 1] = name
            written[#written + 1] = word
        end
    end
    if with_host then
        for i = 1, #with_host do written[#written + 1] = with_host[i] end
    end
    redis.call('HSET', key, unpack(written))
    redis.call('PEXPIRE', key, text(floor(retention / 1000)))
end

-- How long it takes to replenish what is used. Leased units may come back unused, so refunds must not count on them.
local function drained_in()
    if kind ~= 'backlog' then return 0 end
    return math.ceil(level / units) * quantum
end

-- For one lease after the store may have lost something, nothing new is granted; what hosts report as leased is
-- leased to them on.
local quarantined_for = max(0, quarantine - now)

local last = record[1]
if sequence < last then
    save()
    return { 'stale', last }
end
if sequence == last then
    save()
    return { 'granted', sequence, record[6], record[7], max(0, record[3] - now), record[9], record[8], drained_in(),
        utc, record[19], record[20], quarantined_for, record[21] or 0, 0 }
end

-- Settle what the host reports.
local was, expiry, off = record[2], record[3], record[5]
local report = (spent - record[4]) % MODULUS
local refund = (refunded - record[16]) % MODULUS
local by_policy = (ungranted - record[17]) % MODULUS
if report >= MODULUS / 2 or refund >= MODULUS / 2 or by_policy >= MODULUS / 2 then
    save()
    return { 'fell', record[4] }
end
-- What an outage policy admitted was taken from no lease. It is charged once this host has been granted what there is
-- for it.
by_policy = kind == 'places' and 0 or min(by_policy, report)
report = report - by_policy
local kept = 0
if was > 0 and expiry <= now then
    -- Already charged when it expired.
    was = 0
    if kind ~= 'places' then off = record[2] end
elseif was > 0 then
    outstanding = outstanding - was
    slot_add(expiry, -was)
    kept = kind == 'places' and min(held, was) or min(held, max(0, was - report))
end
-- What the host held when it asked is no longer leased to it, but it could spend it until now. Its next request says
-- how much it did spend, and it is granted nothing before that.
local lapsed = held > kept
if quarantined_for > 0 then kept = held end
if kind ~= 'places' then
    local absorbed = min(report, off)
    level = min(MAX, level + (report - absorbed) * period)
    level = max(0, level - refund * period)
    off = lapsed and min(off - absorbed, held) or 0
end
if lapsed and quarantined_for == 0 then kept = 0 end

-- What this host wants among all that want something, in the current epoch and the last one with a request.
epoch = floor(now / lease)
if epoch ~= epoch_before then
    former, former_epoch = wants, epoch_before
    wants, granted_all = {}, 0
end
local function count(histogram, amount, hosts)
    if amount <= 0 then return end
    local _, exponent = math.frexp(amount)
    for i = 1, #histogram, 3 do
        if histogram[i] == exponent then
            histogram[i + 1] = histogram[i + 1] + hosts
            histogram[i + 2] = histogram[i + 2] + hosts * amount
            if histogram[i + 1] <= 0 then for _ = 1, 3 do table.remove(histogram, i) end end
            return
        end
    end
    if hosts < 0 then return end
    local at = 1
    while histogram[at] and histogram[at] < exponent do at = at + 3 end
    table.insert(histogram, at, amount)
    table.insert(histogram, at, 1)
    table.insert(histogram, at, exponent)
end
local of_epoch, granted_before, most, most_before, counted = record[10], record[11], record[12], record[13], record[14]
if of_epoch == epoch then
    count(wants, counted, -1)
elseif of_epoch == former_epoch then
    count(former, counted, -1)
    granted_before, most, most_before = 0, 0, most
else
    granted_before, most, most_before = 0, 0, 0
end
if kind == 'places' then
    granted_before, most, most_before = kept, kept + wanted, 0
else
    -- At most what one host could be granted in an epoch. What it has already been granted is included: of two hosts
    -- with unlimited wants, the one that has less must not look satisfied.
    local replenished = kind == 'backlog' and floor(floor(lease / quantum) * units / period) or 0
    most = max(most, min(burst + replenished, granted_before + wanted))
end
counted = max(most, most_before)
count(wants, counted, 1)

-- The level up to which each host gets what it wants, if the supply of this epoch is divided fairly.
local epoch_left = (epoch + 1) * lease - now
local available = max(0, floor((burst * period - level - outstanding * period - kept * period) / period))
local supply = granted_all + available
if kind == 'backlog' then supply = supply + floor(floor(epoch_left / quantum) * units / period) end
if kind == 'places' then supply = burst end
local hosts, sums = {}, {}
local above, wanted_all = 0, 0
local function add_all(histogram)
    for i = 1, #histogram, 3 do
        local exponent = histogram[i]
        hosts[exponent] = (hosts[exponent] or 0) + histogram[i + 1]
        sums[exponent] = (sums[exponent] or 0) + histogram[i + 2]
        above, wanted_all = above + histogram[i + 1], wanted_all + histogram[i + 2]
    end
end
add_all(wants)
add_all(former)
local active = max(1, above)
local fair, even = MAX, MAX
if wanted_all > supply then
    local below = 0
    for exponent = 1, 53 do
        local here, sum = hosts[exponent] or 0, sums[exponent] or 0
        if here > 0 then
            -- The hosts of a bucket are treated as if each wanted their mean.
            if below * here + sum * above >= supply * here then
                local level_of_all = (supply - below) / above
                fair, even = max(1, math.ceil(level_of_all)), floor(level_of_all)
                break
            end
            below, above = below + sum, above - here
        end
    end
end

-- Hosts that have less than an even share of the places, and want more, wait in a queue, in the order in which they
-- came. One place is kept for each of them, before others get any. `ahead` counts those before this host.
local line_up, ahead, is_waiting = {}, 0, false
if kind == 'places' then
    is_waiting = wanted > 0 and kept < max(1, even)
    local patience, found = max(PATIENCE, floor(lease / 2)), false
    for other, asked_at in string.gmatch(queue or '', '(%x+) (%d+)') do
        if other == host then
            found = is_waiting
            if found then
                ahead = #line_up
                line_up[#line_up + 1] = { host, now }
            end
        elseif now - asked_at <= patience then
            line_up[#line_up + 1] = { other, tonumber(asked_at) }
        end
    end
    if not found then ahead = #line_up end
    if is_waiting and not found and #line_up < QUEUED then line_up[#line_up + 1] = { host, now } end
end

local granted = 0
if not lapsed and wanted > 0 and quarantined_for == 0 then
    local limit = max(0, fair - granted_before)
    -- Only a part of this epoch's supply is available yet, so no host gets more than that part of its share at once.
    -- Otherwise the first to ask would take everything and leave only remainders to the others.
    if kind == 'backlog' and fair < MAX and available > 0 then
        limit = math.ceil(limit / math.ceil((supply - granted_all) / available))
    end
    -- Places do not come back with the next epoch, so what the estimate left over goes to the hosts that ask at its
    -- end.
    if kind == 'places' and epoch_left * 4 <= lease then limit = MAX end
    if is_waiting then limit = max(1, even) - kept end
    -- The end of a window is handed out in ever smaller leases, so that little of it is left where nobody spends it.
    if kind == 'window' then limit = min(limit, max(1, math.ceil(available / (2 * active)))) end
    granted = min(wanted, max(0, available - ahead), limit)
end
granted_before = kind == 'places' and 0 or granted_before + granted
granted_all = kind == 'places' and 0 or granted_all + granted

if granted > 0 then grants = grants + 1 end
local total = kept + granted
outstanding = outstanding + total
-- What does not fit beside what is leased is written off: nobody waits for it to drain.
local room = max(0, (burst - outstanding) * period)
level = level + min(by_policy * period, max(0, room - level))
if kind == 'backlog' and drained > floor(now / quantum) then level = room end
local share = 0
if kind == 'places' then
    share = floor(burst / active)
elseif kind == 'backlog' then
    share = floor(min(burst, floor(floor(lease / quantum) * units / period)) / active)
else
    share = floor(max(0, burst - level) / active)
end
-- What is left for all hosts after this; nothing where they want more. Hosts that are idle keep none of that.
local left_for_all = fair < MAX and 0 or available - granted
expiry = now
-- With nothing, a window's host is told how long that will stay so.
if total > 0 or kind == 'window' then
    expiry = lease_end
    slot_add(expiry, total)
end

-- While others wait, a host takes no place anew above an even share. With fewer places than hosts, that is one place for
-- half a lease, and then none until it has let go of it, so that all have their turn.
local since, ceiling = 0, MAX
if kind == 'places' then
    since = kept > 0 and record[18] or total > 0 and now or 0
    local others = {}
    for i = 1, #line_up do
        local other = line_up[i]
        local is_served = other[1] == host and (granted == wanted or total >= max(1, even))
        if not is_served then others[#others + 1] = other[1] .. ' ' .. text(other[2]) end
        if other[1] ~= host then ceiling = even end
    end
    queue = table.concat(others, ' ')
    if ceiling == 0 and total > 0 and now - since < lease / 2 then ceiling = 1 end
end

record = {
    sequence, total, expiry, spent, off, granted, kept, grants, share, epoch, granted_before, most, most_before,
    counted, now, refunded, ungranted, since, ceiling, active, left_for_all,
}
local written = { 'host:' .. host, line(record) }

-- Once per epoch, a few hosts that have not been seen for long are forgotten.
if epoch ~= epoch_before then
    local scanned = redis.call('HSCAN', key, stored.sweep or '0', 'MATCH', 'host:*', 'COUNT', SWEPT)
    for i = 1, #scanned[2], 2 do
        local other = numbers(scanned[2][i + 1])
        if now - (other[15] or now) > retention and scanned[2][i] ~= 'host:' .. host then
            redis.call('HDEL', key, scanned[2][i])
        end
    end
    written[#written + 1] = 'sweep'
    written[#written + 1] = scanned[1]
end
save(written)
return {
    'granted', sequence, granted, kept, max(0, expiry - now), share, grants, drained_in(), utc, ceiling,
    active, quarantined_for, left_for_all, 0,
}
