import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const number = (value) => { const bytes = Buffer.alloc(4); bytes.writeUInt32LE(value); return bytes; };
const coded = (part) => {
  const bytes = Buffer.isBuffer(part) ? part : Buffer.from(String(part));
  return Buffer.concat([number(bytes.length), bytes]);
};
const hashed = (bytes) => createHash("sha256").update(bytes).digest();

function allowed(parts, mask) { // at least one is allowed
  const left = parts.map((part, arm) => (mask[arm] ? part : 0));
  const weights = left.some((part) => part > 0) ? left : mask.map(Number);
  const sum = weights.reduce((one, other) => one + other);
  let added = 0, end = 0;
  return weights.map((weight) => {
    const start = end;
    added += weight;
    end = Math.floor((added * 2 ** 24) / sum);
    return end - start;
  });
}

function digest(mask) {
  const bits = Buffer.alloc(Math.ceil(mask.length / 8));
  mask.forEach((is, arm) => { if (is) bits[arm >> 3] |= 1 << (arm & 7); });
  return hashed(bits).subarray(0, 8);
}

function draw({ salt, stream, partition, key, epoch, born, block, kind, request, parts, mask }) {
  const head = [salt, stream, partition].map(coded);
  const tail = [epoch, born, block, kind, request].map(coded);
  const filtered = mask.includes(false);
  if (filtered) tail.push(coded(digest(mask)));
  const text = Buffer.concat([...head, key === null ? number(2 ** 32 - 1) : coded(key), ...tail]);
  const part = hashed(text).readUIntLE(0, 3);
  const shares = filtered ? allowed(parts, mask) : parts;
  for (let arm = 0, end = 0; ; arm++) {
    if (part < (end += shares[arm])) return { arm, probability: shares[arm] / 2 ** 24 };
  }
}

const base64 = (text) => Buffer.from(text, "base64");
const numbers = (bytes) => Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readUInt32LE(4 * at));

function choose(line, request, { salt, cell = 0, exclude = [] }) { // a line of the actions topic, parsed
  const key = "key_base64" in line ? base64(line.key_base64) : line.key;
  const [first, count] = [cell * line.actions.length, line.actions.length];
  const parts = numbers(base64(line.policy)).slice(first, first + count);
  const mask = line.actions.map((action) => !exclude.includes(action));
  if (!mask.includes(true)) return null;
  const { arm, probability } = draw({ ...line, salt, key, request, parts, mask });
  return { action: line.actions[arm], probability };
}

const line = JSON.parse(`{"type":"policy","schema":1,"stream":"banners","partition":0,"key":"fr","epoch":1,"born":0,"block":3,
  "kind":"sums","actions":["autumn","boots"],"policy":"AADAAAAAQAA="}`);
const chosen = JSON.stringify(choose(line, "r-8123", { salt: "pepper" }));
if (chosen !== '{"action":"autumn","probability":0.75}') throw new Error(chosen);
const other = JSON.stringify(choose(line, "r-8123", { salt: "pepper", exclude: ["autumn"] }));
if (other !== '{"action":"boots","probability":1}') throw new Error(other);

const rows = (file) => readFileSync(file, "utf8").trimEnd().split("\n").slice(1).map((row) => row.split("\t"));
const same = (one, two) => JSON.stringify(one) === JSON.stringify(two);

function check([salt, stream, partition, key, epoch, born, block, kind, request, policy, ...rest]) {
  const parts = numbers(base64(policy)), [arm, probability] = rest.slice(-2);
  const bits = rest.length === 4 ? base64(rest[0]) : null; // of filtered.tsv
  const mask = parts.map((_, at) => bits === null || (bits[at >> 3] >> (at & 7) & 1) === 1);
  if (bits !== null && !same(allowed(parts, mask), numbers(base64(rest[1])))) throw new Error(request);
  const release = { stream, partition, key: key === "-" ? null : base64(key), epoch, born, block, kind };
  const drawn = draw({ salt, ...release, request, parts, mask });
  if (drawn.arm !== Number(arm) || drawn.probability !== Number(probability)) throw new Error(request);
}

const [plain, filtered] = [rows("choices.tsv"), rows("filtered.tsv")];
[...plain, ...filtered].forEach(check);
console.log(`${plain.length + filtered.length} draws agree`);
