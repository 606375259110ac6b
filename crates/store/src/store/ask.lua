-- A member asks a shared bucket for tokens. The clock is the server's own; nobody else's is used.
-- KEYS[1]  the bucket
-- ARGV     id weight need extra total epoch ahead away within period burst lease horizon ttl pause left leave label quota
--          times in microseconds; period = time per token; pause below zero ends all that are known; quota = whose pause it
--          is, empty for one of everything
local key, id, weight = KEYS[1], ARGV[1], tonumber(ARGV[2])
local need, extra, total = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local epoch, ahead, away, within = ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1', tonumber(ARGV[9])
local period, burst, lease = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local horizon, ttl, pause = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local left, leave, label, quota = tonumber(ARGV[16]), ARGV[17] == '1', ARGV[18], ARGV[19] or ''

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local state, gone, quotas, members, rivals, least, mine = {}, {}, {}, 1, 0, weight, nil
local T, B = period, burst
local fields = redis.call('HGETALL', key)
local back = 0 -- how far the clock has gone back: all moments move with it
for i = 1, #fields, 2 do
  if fields[i] == 'n' then back = math.max(tonumber(fields[i + 1]) - now, 0) end
end
for i = 1, #fields, 2 do
  local name, value = fields[i], fields[i + 1]
  if string.sub(name, 1, 2) == 'q:' then
    local ends = tonumber(value) - back
    if ends > now and pause >= 0 then quotas[name] = ends elseif name ~= 'q:' .. quota then gone[#gone + 1] = name end
  elseif string.sub(name, 1, 2) ~= 'm:' then
    state[name] = tonumber(value)
  else
    local g, seen, till, w, p, b = string.match(value, '^(%d+) (%d+) (%d+) (%d+) (%S+) (%S+)')
    g, seen, till = tonumber(g), math.max(tonumber(seen) - back, 0), math.max(tonumber(till) - back, 0)
    if name == 'm:' .. id then
      mine = { granted = g, till = till, rest = tonumber(string.match(value, '^%d+ %d+ %d+ %d+ %S+ %S+ %S+ (%S+)')) }
    elseif seen + ttl < now and till < now then
      gone[#gone + 1] = name
    else -- the strictest member's limits hold while it lives
      if back > 0 then
        redis.call('HSET', key, name, string.format('%d %d %d %s', g, seen, till, string.match(value, '^%d+ %d+ %d+ (.+)$')))
      end
      members, T, B = members + 1, math.max(T, tonumber(p)), math.min(B, tonumber(b))
      if till >= now then rivals, least = rivals + w, math.min(least, w) end
    end
  end
end

-- zero: when the bucket held, or will hold, no token
local zero, born = (state.z or now) - back, state.e or now
local known = mine and epoch == string.format('%d', born)
if away or (total > 0 and not (known and total <= mine.granted)) then
  zero = math.max(zero, now) + ahead * T -- it has spent what this store does not know of
end
if left >= 0 then zero = math.max(zero, now - left * T) end -- the upstream says that less is left
zero = math.max(zero, now - B * T)

local whole = quota == '' and pause > 0
local paused = pause < 0 and now or math.max((state.p or 0) - back, whole and now + pause or 0)
if pause > 0 and not whole then quotas['q:' .. quota] = math.max(quotas['q:' .. quota] or 0, now + pause) end
local count, first_end, notices = 0, nil, {}
for name, ends in pairs(quotas) do
  count = count + 1
  if not first_end or ends < quotas[first_end] or (ends == quotas[first_end] and name < first_end) then first_end = name end
end
if count > 64 then -- the one that ends first goes
  quotas[first_end], gone[#gone + 1] = nil, first_end
end
for name, ends in pairs(quotas) do
  if back > 0 or name == 'q:' .. quota then redis.call('HSET', key, name, string.format('%d', ends)) end
  notices[#notices + 1], notices[#notices + 2] = string.sub(name, 3), string.format('%d', ends - now)
end
local level, granted, rest = (now - zero) / T, 0, mine and mine.rest or 0
local first = zero + T - now
if paused > now then
  first = math.max(first, paused - now)
elseif need > 0 and first <= within then
  -- a turn is what the horizon has for it, in whole tokens for the lightest, one at least; what is left of it comes with the next
  local all = rivals + weight
  local turn = math.max(math.floor(horizon / T * least / all), 1) * weight / least
  local share = math.max(level, 0) * weight / all + turn + rest - ahead
  local most = math.min(level + math.max(horizon / T, all / least) + 1, (within - first) / T + 1)
  granted = math.max(math.min(need, math.floor(share), math.floor(most)), ahead == 0 and 1 or 0)
  rest = granted < need and math.min(math.max(share - granted, 0), 2) or 0
end
if paused <= now and granted >= need and extra > 0 then
  granted = granted + math.max(math.min(extra, math.floor(level - granted - B / 2)), 0)
end
zero = zero + granted * T

if leave then
  gone[#gone + 1] = 'm:' .. id
else
  local till = need > 0 and math.max(now, zero) + lease or (mine and mine.till or 0)
  redis.call('HSET', key, 'm:' .. id, string.format('%d %d %d %d %s %s %s %.3f', total + granted, now, till, weight, ARGV[10], ARGV[11], label, rest))
end
if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
redis.call('HSET', key, 'z', string.format('%.2f', zero), 'e', string.format('%d', born), 'p', string.format('%d', math.max(paused, 0)), 'n', string.format('%d', now))
redis.call('PEXPIRE', key, 86400000)
return { granted, string.format('%.0f', math.ceil(first)), string.format('%.2f', T), string.format('%.3f', level), string.format('%d', born),
  string.format('%d', now), members, rivals, paused > 0 and string.format('%d', paused - now) or '0', notices }
