import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.Base64;

public class Draw {
    record Drawn(int arm, double probability) {}

    static byte[] number(int value) {
        return ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(value).array();
    }

    static void coded(MessageDigest hash, byte[] part) {
        hash.update(number(part.length));
        hash.update(part);
    }

    // field: salt, stream, partition, key in base64 (null: the null key), epoch, born, block, kind, request.
    // policy: the line's, in base64; first: 0, or with contexts the cell times the number of actions.
    static Drawn draw(String[] field, String policy, int first) throws Exception {
        var hash = MessageDigest.getInstance("SHA-256");
        for (int at = 0; at < 9; at++) {
            if (at == 3 && field[3] == null) hash.update(number(-1));
            else if (at == 3) coded(hash, Base64.getDecoder().decode(field[3]));
            else coded(hash, field[at].getBytes(StandardCharsets.UTF_8));
        }
        byte[] digest = hash.digest();
        int part = (digest[0] & 255) | (digest[1] & 255) << 8 | (digest[2] & 255) << 16;
        var parts = ByteBuffer.wrap(Base64.getDecoder().decode(policy)).order(ByteOrder.LITTLE_ENDIAN);
        int arm = first, share = parts.getInt(4 * arm);
        for (int end = share; part >= end; end += share) share = parts.getInt(4 * ++arm);
        return new Drawn(arm, share / 16777216.0);
    }

    public static void main(String[] arguments) throws Exception {
        String[] actions = {"autumn", "boots"}; // the line's actions
        String[] release = {"pepper", "banners", "0", "ZnI=", "1", "0", "3", "sums", "r-8123"};
        Drawn chosen = draw(release, "AADAAAAAQAA=", 0);
        if (!actions[chosen.arm()].equals("autumn") || chosen.probability() != 0.75)
            throw new AssertionError(chosen);
        var lines = Files.readAllLines(Path.of("choices.tsv"));
        for (String line : lines.subList(1, lines.size())) {
            String[] field = line.split("\t");
            if (field[3].equals("-")) field[3] = null;
            Drawn drawn = draw(field, field[9], 0);
            if (drawn.arm() != Integer.parseInt(field[10]) || drawn.probability() != Double.parseDouble(field[11]))
                throw new AssertionError(line);
        }
        System.out.println(lines.size() - 1 + " draws agree");
    }
}
