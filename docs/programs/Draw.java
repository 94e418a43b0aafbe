import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Base64;
import java.util.BitSet;

public class Draw {
    record Drawn(int arm, double probability) {}

    static byte[] number(int value) {
        return ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(value).array();
    }

    static void coded(MessageDigest hash, byte[] part) {
        hash.update(number(part.length));
        hash.update(part);
    }

    static byte[] digest(BitSet mask, int actions) throws Exception {
        byte[] bits = Arrays.copyOf(mask.toByteArray(), (actions + 7) / 8);
        return Arrays.copyOf(MessageDigest.getInstance("SHA-256").digest(bits), 8);
    }

    static int[] allowed(int[] parts, BitSet mask, BitSet back) { // at least one is allowed; back: of the mask
        long sum = mask.stream().mapToLong(arm -> parts[arm]).sum(), all = sum == 0 ? mask.cardinality() : sum;
        long came = sum == 0 ? 0 : back.cardinality(), others = Math.max(mask.cardinality() - came, came);
        long left = (1L << 24) * others / (others + came), rest = (1L << 24) - left;
        int[] shares = new int[parts.length];
        long added = 0, seen = 0, end = 0;
        for (int arm = 0; arm < parts.length; arm++) {
            long start = end;
            if (mask.get(arm)) added += sum == 0 ? 1 : parts[arm];
            if (back.get(arm)) seen++;
            end = added * left / all + (came == 0 ? 0 : seen * rest / came);
            shares[arm] = (int) (end - start);
        }
        return shares;
    }

    // field: salt, stream, partition, key in base64 (null: the null key), epoch, born, block, kind, request.
    // parts: those of the line's policy, with contexts those of the request's cell; mask: of what is allowed;
    // back: of that what the line's list paused, and a newer one does not.
    // Without the parts of actions with an empty name; and 0 for each that a list of the line's epoch has
    // beside them, in its order: these are back too.
    static Drawn draw(String[] field, int[] parts, BitSet mask, BitSet back) throws Exception {
        var hash = MessageDigest.getInstance("SHA-256");
        for (int at = 0; at < 9; at++) {
            if (at == 3 && field[3] == null) hash.update(number(-1));
            else if (at == 3) coded(hash, Base64.getDecoder().decode(field[3]));
            else coded(hash, field[at].getBytes(StandardCharsets.UTF_8));
        }
        boolean filtered = mask.cardinality() < parts.length || !back.isEmpty();
        if (filtered) coded(hash, digest(mask, parts.length));
        byte[] digest = hash.digest();
        int part = (digest[0] & 255) | (digest[1] & 255) << 8 | (digest[2] & 255) << 16;
        int[] shares = filtered ? allowed(parts, mask, back) : parts;
        int arm = 0;
        for (int end = shares[0]; part >= end; end += shares[arm]) arm++;
        return new Drawn(arm, shares[arm] / 16777216.0);
    }

    static int[] numbers(String base64) {
        var bytes = ByteBuffer.wrap(Base64.getDecoder().decode(base64)).order(ByteOrder.LITTLE_ENDIAN);
        int[] numbers = new int[bytes.remaining() / 4];
        bytes.asIntBuffer().get(numbers);
        return numbers;
    }

    static BitSet first(int actions) {
        var mask = new BitSet();
        mask.set(0, actions);
        return mask;
    }

    static int check(String file, int columns) throws Exception {
        var lines = Files.readAllLines(Path.of(file));
        for (String line : lines.subList(1, lines.size())) {
            String[] field = line.split("\t");
            if (field[3].equals("-")) field[3] = null;
            int[] parts = numbers(field[9]);
            BitSet mask = first(parts.length), back = new BitSet();
            if (columns == 15) {
                mask = BitSet.valueOf(Base64.getDecoder().decode(field[10]));
                back = BitSet.valueOf(Base64.getDecoder().decode(field[11]));
                back.and(mask);
                if (!Arrays.equals(allowed(parts, mask, back), numbers(field[12]))) throw new AssertionError(line);
            }
            Drawn drawn = draw(field, parts, mask, back);
            if (drawn.arm() != Integer.parseInt(field[columns - 2])
                || drawn.probability() != Double.parseDouble(field[columns - 1])) throw new AssertionError(line);
        }
        return lines.size() - 1;
    }

    public static void main(String[] arguments) throws Exception {
        String[] actions = {"autumn", "boots"}; // the line's actions
        String[] release = {"pepper", "banners", "0", "ZnI=", "1", "0", "3", "sums", "r-8123"};
        Drawn chosen = draw(release, numbers("AADAAAAAQAA="), first(2), new BitSet());
        if (!actions[chosen.arm()].equals("autumn") || chosen.probability() != 0.75)
            throw new AssertionError(chosen);
        System.out.println(check("choices.tsv", 12) + check("filtered.tsv", 15) + " draws agree");
    }
}
