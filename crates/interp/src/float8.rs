//! FP8 E4M3 (no infinities, one NaN per sign, largest finite 448): conversion from and to f32.

const NAN: u8 = 0x7f;
/// 448.
const LARGEST: u8 = 0x7e;

/// Exact value of an E4M3 code.
pub fn f8e4m3_to_f32(code: u8) -> f32 {
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let exponent = i32::from((code >> 3) & 15);
    let mantissa = f32::from(code & 7);
    match (exponent, code & 7) {
        (15, 7) => f32::NAN.copysign(sign),
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (8.0 + mantissa) * 2f32.powi(exponent - 10),
    }
}

/// Nearest E4M3 code, ties to even; what lies beyond 448, infinities too, saturates to 448, NaN stays NaN.
pub fn f8e4m3_from_f32(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let a = x.abs();
    if a.is_nan() {
        return sign | NAN;
    }
    if a >= 448.0 {
        return sign | LARGEST;
    }
    // Spacing of E4M3 at this magnitude: 2^(e - 3), at least 2^-9.
    let e = ((a.to_bits() >> 23) as i32 - 127).max(-6);
    let steps = (a * 2f32.powi(3 - e)).round_ties_even() as u32;
    // `steps` counts from 0 for subnormals, from 8 for normals; 16 carries into the exponent by itself.
    let code = ((e + 6) as u32) * 8 + steps;
    sign | code as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..=255u8 {
            assert_eq!(f8e4m3_from_f32(f8e4m3_to_f32(code)), code, "code {code:#x}");
        }
    }

    #[test]
    fn rounds_to_even_and_saturates() {
        assert_eq!(f8e4m3_from_f32(447.9), LARGEST);
        assert_eq!(f8e4m3_from_f32(1e9), LARGEST);
        assert_eq!(f8e4m3_from_f32(f32::NEG_INFINITY), 0x80 | LARGEST);
        assert_eq!(f8e4m3_from_f32(f32::NAN), NAN);
        assert_eq!(f8e4m3_from_f32(-0.0), 0x80);
        assert_eq!(f8e4m3_from_f32(1.0625), f8e4m3_from_f32(1.0));
        assert_eq!(f8e4m3_from_f32(1.1875), f8e4m3_from_f32(1.25));
    }
}
