import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const number = (value) => { const bytes = Buffer.alloc(4); bytes.writeUInt32LE(value); return bytes; };
const coded = (part) => {
  const bytes = Buffer.isBuffer(part) ? part : Buffer.from(String(part));
  return Buffer.concat([number(bytes.length), bytes]);
};
const hashed = (bytes) => createHash("sha256").update(bytes).digest();

const total = (numbers) => numbers.reduce((one, other) => one + other, 0);

function allowed(parts, mask, back) { // at least one is allowed
  const old = parts.map((part, arm) => (mask[arm] ? part : 0)), some = total(old) > 0;
  const weights = some ? old : mask.map(Number), fresh = mask.map((is, arm) => Number(some && is && back[arm]));
  const [sum, came] = [total(weights), total(fresh)], others = Math.max(total(mask.map(Number)) - came, came);
  const left = Math.floor((2 ** 24 * others) / (others + came));
  let added = 0, seen = 0, end = 0;
  return weights.map((weight, arm) => {
    const start = end;
    added += weight;
    seen += fresh[arm];
    end = Math.floor((added * left) / sum) + (came ? Math.floor((seen * (2 ** 24 - left)) / came) : 0);
    return end - start;
  });
}

function digest(mask) {
  const bits = Buffer.alloc(Math.ceil(mask.length / 8));
  mask.forEach((is, arm) => { if (is) bits[arm >> 3] |= 1 << (arm & 7); });
  return hashed(bits).subarray(0, 8);
}

function draw({ salt, stream, partition, key, epoch, born, block, kind, request, parts, mask, back }) {
  const head = [salt, stream, partition].map(coded);
  const tail = [epoch, born, block, kind, request].map(coded);
  const filtered = mask.includes(false) || back.includes(true);
  if (filtered) tail.push(coded(digest(mask)));
  const text = Buffer.concat([...head, key === null ? number(2 ** 32 - 1) : coded(key), ...tail]);
  const part = hashed(text).readUIntLE(0, 3);
  const shares = filtered ? allowed(parts, mask, back) : parts;
  for (let arm = 0, end = 0; ; arm++) {
    if (part < (end += shares[arm])) return { arm, probability: shares[arm] / 2 ** 24 };
  }
}

const base64 = (text) => Buffer.from(text, "base64");
const numbers = (bytes) => Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readUInt32LE(4 * at));

// line: of the actions topic, parsed; exclude: by the request or the newest list, which has this ordinal;
// added: the list's actions, if its epoch is the line's
function choose(line, request, { salt, cell = 0, exclude = [], ordinal = 0, added = [] }) {
  const key = "key_base64" in line ? base64(line.key_base64) : line.key;
  const [first, count] = [cell * line.actions.length, line.actions.length];
  const named = line.actions.filter((action) => action !== ""); // others are columns without a name yet
  const fresh = added.filter((action) => !named.includes(action)), actions = [...named, ...fresh];
  const parts = numbers(base64(line.policy)).slice(first, first + count).filter((_, arm) => line.actions[arm] !== "");
  parts.push(...fresh.map(() => 0));
  const mask = actions.map((action) => !exclude.includes(action));
  if (!mask.includes(true)) return null;
  const paused = ordinal > (line.list_ordinal ?? 0) ? (line.paused ?? []) : []; // by the line's own list alone
  const back = actions.map((action, arm) => mask[arm] && (paused.includes(action) || fresh.includes(action)));
  const { arm, probability } = draw({ ...line, salt, key, request, parts, mask, back });
  return { action: actions[arm], probability };
}

const line = JSON.parse(`{"type":"policy","schema":1,"stream":"banners","partition":0,"key":"fr","epoch":1,"born":0,"block":3,
  "kind":"sums","actions":["autumn","boots"],"policy":"AADAAAAAQAA="}`);
const chosen = JSON.stringify(choose(line, "r-8123", { salt: "pepper" }));
if (chosen !== '{"action":"autumn","probability":0.75}') throw new Error(chosen);
const other = JSON.stringify(choose(line, "r-8123", { salt: "pepper", exclude: ["autumn"] }));
if (other !== '{"action":"boots","probability":1}') throw new Error(other);

const later = { ...line, list_ordinal: 1, paused: ["boots"], policy: "AAAAAQAAAAA=" }; // all for autumn
const back = JSON.stringify(choose(later, "r-8123", { salt: "pepper", ordinal: 2 }));
if (!back.endsWith('"probability":0.5}')) throw new Error(back);

const roomy = { ...line, schema: 2, actions: ["autumn", "boots", "", ""], policy: "AADAAAAAQAAAAAAAAAAAAA==" };
const alike = JSON.stringify(choose(roomy, "r-8123", { salt: "pepper" }));
if (alike !== chosen) throw new Error(alike);
const fresh = choose(roomy, "r-8123", { salt: "pepper", added: ["autumn", "boots", "coats"], exclude: ["autumn", "boots"] });
if (fresh.action !== "coats") throw new Error(fresh.action);

const rows = (file) => readFileSync(file, "utf8").trimEnd().split("\n").slice(1).map((row) => row.split("\t"));
const same = (one, two) => JSON.stringify(one) === JSON.stringify(two);

function check([salt, stream, partition, key, epoch, born, block, kind, request, policy, ...rest]) {
  const parts = numbers(base64(policy)), [arm, probability] = rest.slice(-2);
  const bits = (text, arm) => (base64(text)[arm >> 3] >> (arm & 7) & 1) === 1;
  const some = rest.length === 5; // of filtered.tsv
  const mask = parts.map((_, arm) => !some || bits(rest[0], arm));
  const back = parts.map((_, arm) => some && mask[arm] && bits(rest[1], arm));
  if (some && !same(allowed(parts, mask, back), numbers(base64(rest[2])))) throw new Error(request);
  const release = { stream, partition, key: key === "-" ? null : base64(key), epoch, born, block, kind };
  const drawn = draw({ salt, ...release, request, parts, mask, back });
  if (drawn.arm !== Number(arm) || drawn.probability !== Number(probability)) throw new Error(request);
}

const [plain, filtered] = [rows("choices.tsv"), rows("filtered.tsv")];
[...plain, ...filtered].forEach(check);
console.log(`${plain.length + filtered.length} draws agree`);
